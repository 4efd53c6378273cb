"""The one tree of errors: each crosses the request plane by its `kind` and is raised with the same type by the caller.

`status` is what an HTTP client sees; `migratable` says whether the request may be retried on another worker.
"""

from __future__ import annotations

import re
from typing import ClassVar

MAX_MESSAGE = 8192
"""Characters of an `HttpError`'s message; what is longer is cut."""


class StartError(Exception):
    """A process cannot start; the message says what was tried and how to fix it."""


_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}:\d+|\[[0-9a-fA-F:.]+\]:\d+|dynamo\.(?:requests|streams)\.[0-9a-f.]+"
)


class ModelError(StartError):
    """A model cannot be found, read or loaded."""


class FileError(ModelError):
    """The files that a model card names cannot be had; another worker, or another time, may help."""


class TemplateError(ModelError):
    """A chat template rejected its messages; the text is the template's own if it raised one."""


class DynamoException(Exception):
    kind: ClassVar[str] = "dynamo"
    status: int = 500
    migratable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    @property
    def public_message(self) -> str:
        """The message for a client: without the addresses of machines behind the server."""
        return _ADDRESS.sub("a worker", self.message) if self.status >= 500 else self.message

    @property
    def is_engine_fault(self) -> bool:
        """Whether the engine raised it: not a client's mistake, nor a sign of load or of a lost connection."""
        return self.status >= 500 and not self.migratable and not isinstance(self, Unavailable | ResourceExhausted)


class Unknown(DynamoException):
    """An engine raised an exception of its own."""

    kind = "unknown"


class InvalidArgument(DynamoException):
    kind = "invalid_argument"
    status = 400


class InvalidRequest(InvalidArgument):
    """A client's mistake in a request: `param` is the path of the field, `code` the machine-readable reason."""

    kind = "invalid_request"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    @classmethod
    def missing(cls, param: str) -> InvalidRequest:
        return cls(f"Missing required parameter: `{param}`.", param, "missing_required_parameter")

    @classmethod
    def bad_value(cls, param: str, why: str) -> InvalidRequest:
        return cls(f"{param}: {why}.", param, "invalid_value")

    @classmethod
    def unsupported(cls, param: str, why: str) -> InvalidRequest:
        return cls(f"`{param}` is not supported here: {why}.", param, "unsupported_parameter")


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit. Clients find this out by the words of the API they speak, so the numbers come along."""

    kind = "context_length_exceeded"

    def __init__(self, message: str, param: str | None = None, tokens: int = 0, limit: int = 0) -> None:
        super().__init__(message, param, "context_length_exceeded")
        self.tokens = tokens
        self.limit = limit


class NotFound(InvalidRequest):
    """A stored object that does not exist, or no longer."""

    kind = "not_found"
    status = 404


class CannotStore(DynamoException):
    """The disk is full, or cannot be written for another reason."""

    kind = "cannot_store"
    status = 507


class ModelNotFound(DynamoException):
    kind = "model_not_found"
    status = 404


class Unavailable(DynamoException):
    """No worker can serve this now; retrying later may help."""

    kind = "unavailable"
    status = 503


class ResourceExhausted(DynamoException):
    """All workers are busy beyond their limits."""

    kind = "resource_exhausted"
    status = 503


class RouterQueueLimitExceeded(ResourceExhausted):
    kind = "router_queue_limit_exceeded"


class WorkerBusy(ResourceExhausted):
    """One worker is at its own limit; another may take the request."""

    kind = "worker_busy"
    migratable = True


class SelectionServiceError(DynamoException):
    kind = "selection_service"


class CannotConnect(DynamoException):
    kind = "cannot_connect"
    status = 502
    migratable = True


class Disconnected(DynamoException):
    """The connection broke while the stream was open."""

    kind = "disconnected"
    status = 502
    migratable = True


class ConnectionTimeout(DynamoException):
    kind = "connection_timeout"
    status = 504
    migratable = True


class EngineShutdown(DynamoException):
    kind = "engine_shutdown"
    status = 503
    migratable = True


class EngineDied(EngineShutdown):
    """Nobody asked it to: the request may be the cause."""

    kind = "engine_died"


class StreamIncomplete(DynamoException):
    """The worker ended a stream without saying why."""

    kind = "stream_incomplete"
    status = 502
    migratable = True


class Cancelled(DynamoException):
    kind = "cancelled"
    status = 499


class ProtocolError(DynamoException):
    """A peer violated the protocol."""

    kind = "protocol"
    status = 502


class HttpError(DynamoException):
    """Raised by a handler to choose the HTTP status itself."""

    kind = "http"

    def __init__(self, code: int, message: str) -> None:
        if type(code) is not int or not 0 <= code <= 599:
            raise ValueError(f"HTTP status code must be an integer in 0..599, not {code!r}")
        if not isinstance(message, str):
            raise ValueError(f"HTTP error message must be a string, not {type(message).__name__}")
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 3] + "..."
        super().__init__(code, message)
        self.code = self.status = code

    @property
    def message(self) -> str:
        return str(self.args[1])

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def _tree(root: type[DynamoException]) -> list[type[DynamoException]]:
    return [root, *(leaf for branch in root.__subclasses__() for leaf in _tree(branch))]


_BY_KIND = {error.kind: error for error in _tree(DynamoException)}


def to_wire(error: DynamoException) -> tuple[str, str, int]:
    """(kind, message, status) as an error frame carries it."""
    return error.kind, error.message, error.status


def from_wire(kind: str, message: str, status: int) -> DynamoException:
    """Rebuild a peer's error; a kind this version does not know becomes `Unknown` with the peer's message."""
    if kind == HttpError.kind:
        return HttpError(status if 0 <= status <= 599 else 500, message)
    return _BY_KIND.get(kind, Unknown)(message)


def from_exception(error: BaseException) -> DynamoException:
    """The error a caller should see for what a handler raised."""
    if isinstance(error, DynamoException):
        return error
    code, message = getattr(error, "code", getattr(error, "status", None)), getattr(error, "message", None)
    if type(code) is int and isinstance(message, str) and 0 <= code <= 599:
        return HttpError(code, message)
    text = str(error) or type(error).__name__
    if isinstance(error, KeyError):  # its text is the key alone
        text = f"KeyError: {text}"
    match error:
        case TimeoutError():
            return ConnectionTimeout(text)
        case ConnectionRefusedError():
            return CannotConnect(text)
        case ConnectionError():
            return Disconnected(text)
        case ValueError() | TypeError():
            return InvalidArgument(text)
        case SystemExit():
            return Unknown(f"the handler called exit with status {error.code}")
        case GeneratorExit():
            return EngineShutdown("engine shutting down")
    if type(error).__name__ == "CancelledError":
        return Cancelled(text)
    return Unknown(text)
