"""The health and metrics that a worker process reports over HTTP."""

from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import EndpointCounts, endpoint_labels
from dynamo.runtime.status.status import EndpointStatus, Status

__all__ = ["EndpointCounts", "EndpointStatus", "Status", "StatusConfig", "endpoint_labels"]
