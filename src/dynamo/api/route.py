"""What the HTTP process knows of an API: its routes, and the call that a handler gets."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web
from msgspec import Struct

from dynamo.api import headers
from dynamo.api.answers.errors import OPENAI, Dialect
from dynamo.api.openai.trace_payload import CapturedPayload
from dynamo.api.sessions import guessed_session, named_session
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.engine import Session, Tenant
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import Context
from dynamo.serving.batches.line import AnswerLine
from dynamo.serving.observer import RequestObserver
from dynamo.serving.resumable import ResumableStream

Body = TypeVar("Body")
Process = TypeVar("Process")
"""What a handler needs of its process: `dynamo.api.host.Host`, or more for routes of the process itself."""

OWNER = web.RequestKey("owner", str)
"""Where a request keeps the owner of its key."""


class Access(enum.Enum):
    """Who may call a route. Probes and metrics are polled by machines: they are answered while the server drains, and
    logged at debug level only."""

    KEY = enum.auto()
    """Clients with an API key, where the server has keys."""
    ADMIN = enum.auto()
    """Administrators: with an admin key; on this machine also without, where the server has no keys at all."""
    PROBE = enum.auto()
    """Anyone."""
    METRICS = enum.auto()
    """Anyone, unless `--protect-metrics` requires a key."""
    PAGE = enum.auto()
    """Anyone: a browser has no key before the page has asked for one. Logged as probes are."""


class MeasuredRequest(RequestObserver, Protocol):
    """Measures one request; the HTTP process has one for each."""

    request_id: str
    traceparent: str | None
    tenant: Tenant | None
    """Whose it is in the routers' queues, if the server has keys."""
    warnings: list[str]
    """What was left out of it."""
    stream: bool
    """The answer is a stream."""
    session: Session | None
    """The conversation that it is a turn of."""
    payload: CapturedPayload | None
    """What was said, where request traces keep it."""

    def go_on(self) -> asyncio.Future[int]:
        """The request ends when this future gets its status, not when it is answered."""

    def failed(self, error: DynamoException) -> None:
        """Record the error that the client got instead of an answer."""


class HttpCall(Generic[Body]):
    """One admitted request with its decoded body."""

    __slots__ = ("body", "raw_body", "record", "request", "request_id", "stream")

    def __init__(self, request: web.Request, record: MeasuredRequest, body: Body, raw_body: bytes | bytearray) -> None:
        self.request = request
        self.record = record
        self.request_id = record.request_id
        self.body = body
        self.raw_body = raw_body
        self.stream: ResumableStream | None = None
        """The stream that the call continues, where another call than the client's first one asks for it."""

    @property
    def owner(self) -> str:
        """Whose state the request may use: that of its API key."""
        return self.request[OWNER]

    def context(
        self, request: ChatRequest | CompletionRequest | EmbeddingRequest, conversation: str | None = None
    ) -> Context:
        """Read the headers: `nvext` fields are added to `request`; id, metadata and trace become the context.

        `conversation` is the id of the kept one that the request continues, or begins.
        """
        sent = self.request.headers
        request.nvext = headers.nvext(sent, request.nvext)
        context = Context(
            headers.context_id(sent, self.request_id), headers.metadata(sent), traceparent=self.record.traceparent
        )
        context.tenant = self.record.tenant
        context.session = self.record.session = self._session(request, conversation)
        return context

    def _session(
        self, request: ChatRequest | CompletionRequest | EmbeddingRequest, conversation: str | None
    ) -> Session | None:
        owner = self.request.get(OWNER, "")
        session, wrong = named_session(self.request.headers, owner)
        self.warn("what is not the id of a session", wrong)
        if session is None and conversation:
            return Session(conversation, owner)
        if session is None and isinstance(request, ChatRequest):
            return guessed_session(request.messages, owner)
        return session

    def begins(self, context: Context, conversation: str) -> None:
        """A kept conversation begins with this request, unless the client has named or continued one."""
        session = context.session
        if session and not session.named:
            context.session = self.record.session = Session(conversation, session.owner)

    def warn(self, what: str, names: Sequence[str]) -> None:
        """Tell the client, in a header and in `nvext`, what was left out of the request."""
        if names:
            self.record.warnings.append(headers.ignored(what, names))


Handler = Callable[[Process, HttpCall[Body]], Awaitable[web.StreamResponse]]


class HttpRoute(Struct, Generic[Process, Body], frozen=True):
    """Everything in which routes differ is a field here."""

    method: str
    path: str
    """In the router's syntax: `{name:regex}` is a variable part."""
    handler: Handler[Process, Body]
    body: type[Body] | None = None
    """The type the body is decoded to; None for a route without a body."""
    any_content_type: bool = False
    """The body is JSON whatever its `Content-Type` says."""
    limits: tuple[str, ...] = ()
    """The fields of the body that limit the length of the answer, for operators' templates and for limits of keys."""
    access: Access = Access.KEY
    endpoint: str | None = None
    """The route runs a model: its requests are counted under this label and traced."""
    limited: bool = False
    """Its requests count toward the limits of their key."""
    embeds: bool = False
    """Its answers are embeddings, whose latency has a metric."""
    batched: AnswerLine | None = None
    """Answers the same request as a line of a batch."""
    dialect: Dialect = OPENAI

    summary: str | None = None
    """None keeps the route out of the OpenAPI document. This field and those below only serve that document."""
    answer: Any = None
    """The struct of its answer; None for any object."""
    statuses: tuple[int, ...] = ()
    """The errors it can answer with."""
    streams: bool = False
    """The answer can also be a stream."""
    stream_type: str = "text/event-stream"

    @property
    def is_probe(self) -> bool:
        return self.access in (Access.PROBE, Access.METRICS, Access.PAGE)


AnyRoute = HttpRoute[Any, Any]

INFERENCE_ERRORS = (400, 401, 404, 413, 415, 429, 500, 502, 503, 504)
STORED_ERRORS = (400, 401, 404)
WRITTEN_ERRORS = (400, 401, 404, 413, 415)


def inference(
    path: str, handler: Handler[Process, Body], body: type[Body], answer: type, summary: str, **more: Any
) -> HttpRoute[Process, Body]:
    """A route that asks a model, or its tokenizer."""
    return HttpRoute(
        "POST", path, handler, body, limited=True, summary=summary, answer=answer, statuses=INFERENCE_ERRORS, **more
    )


class Api(Struct, frozen=True):
    """One API over HTTP."""

    routes: tuple[AnyRoute, ...]
    prefix: str | None = None
    """Unknown paths that begin so are answered in its dialect."""
    dialect: Dialect = OPENAI
