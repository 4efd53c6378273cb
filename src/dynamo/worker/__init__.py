"""What every worker does: serve an engine at an endpoint, and publish its KV events and load."""

from dynamo.worker.serve import serve_engine

__all__ = ["serve_engine"]
