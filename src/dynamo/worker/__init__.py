"""What every worker is made of: an engine, an endpoint, a registration, an orderly end."""

from dynamo.worker.serve import serve_engine

__all__ = ["serve_engine"]
