"""The description of a route: everything in which routes differ is a field here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic

from aiohttp import web
from msgspec import Struct

from dynamo.api.access import Access
from dynamo.api.answers.errors import ErrorShape
from dynamo.api.call import Body, HttpCall
from dynamo.frontend.state import Frontend
from dynamo.protocols.answers import ErrorAnswer

Handler = Callable[[Frontend, HttpCall[Body]], Awaitable[web.StreamResponse]]


class HttpRoute(Struct, Generic[Body], frozen=True):
    method: str
    path: str
    """In the router's syntax: `{name:regex}` is a variable part."""
    handler: Handler[Body]
    body: type[Body] | None = None
    """The type the body is decoded to; None for a route without a body."""
    any_content_type: bool = False
    """The body is JSON whatever its `Content-Type` says."""
    access: Access = Access.KEY
    endpoint: str | None = None
    """The route runs a model: its requests are counted under this label, traced and limited."""
    error: ErrorShape = ErrorAnswer
    """The shape of its errors."""

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
