"""Values that workers share."""

from enum import Enum


class DisaggregationMode(Enum):
    """What a worker does of a request."""

    AGGREGATED = "agg"
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"
