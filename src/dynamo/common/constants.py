"""Values that workers share, by the names under which ai-dynamo's programs import them."""

from dynamo.compat.common import DisaggregationMode

__all__ = ["DisaggregationMode"]
