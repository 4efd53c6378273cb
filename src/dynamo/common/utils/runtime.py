"""`dynamo.common.utils.runtime`, by the name under which ai-dynamo's programs import it."""

from dynamo.compat.common import create_runtime, parse_endpoint, run_async

__all__ = ["create_runtime", "parse_endpoint", "run_async"]
