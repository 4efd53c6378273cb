"""What a handler may raise, and what a client's stream may end with."""

from dynamo.protocols.errors import (
    Cancelled,
    CannotConnect,
    ConnectionTimeout,
    Disconnected,
    DynamoException,
    EngineShutdown,
    HttpError,
    InvalidArgument,
    ResourceExhausted,
    RouterQueueLimitExceeded,
    SelectionServiceError,
    StreamIncomplete,
    Unavailable,
    Unknown,
)

__all__ = [
    "Cancelled",
    "CannotConnect",
    "ConnectionTimeout",
    "Disconnected",
    "DynamoException",
    "EngineShutdown",
    "HttpError",
    "InvalidArgument",
    "ResourceExhausted",
    "RouterQueueLimitExceeded",
    "SelectionServiceError",
    "StreamIncomplete",
    "Unavailable",
    "Unknown",
]
