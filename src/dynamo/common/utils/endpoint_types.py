"""`dynamo.common.utils.endpoint_types`, by the name under which ai-dynamo's programs import it."""

from dynamo.compat.common import parse_endpoint_types

__all__ = ["parse_endpoint_types"]
