"""`dynamo.common.utils.namespace`, by the name under which ai-dynamo's programs import it."""

from dynamo.compat.common import get_worker_namespace

__all__ = ["get_worker_namespace"]
