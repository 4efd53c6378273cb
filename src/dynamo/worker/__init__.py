"""What every worker does: serve an engine at an endpoint, publish its KV events and load, drain."""

from dynamo.worker.serve import serve_engine

__all__ = ["serve_engine"]
