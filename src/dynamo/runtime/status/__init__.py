"""What a worker tells of itself to machines that ask over HTTP: whether it is well, and what it has done."""

from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import EndpointCounts, endpoint_labels
from dynamo.runtime.status.served import ServedEndpoint
from dynamo.runtime.status.status import Status

__all__ = ["EndpointCounts", "ServedEndpoint", "Status", "StatusConfig", "endpoint_labels"]
