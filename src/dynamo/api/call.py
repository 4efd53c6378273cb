"""One admitted HTTP request with its decoded body: the argument of every handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from aiohttp import web

from dynamo.frontend import headers
from dynamo.frontend.admission.keys import OWNER, TENANT
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.runtime import Context

Body = TypeVar("Body")


class HttpCall(Generic[Body]):
    __slots__ = ("body", "raw_body", "record", "request", "request_id")

    def __init__(self, request: web.Request, record: RequestRecord, body: Body, raw_body: bytes | bytearray) -> None:
        self.request = request
        self.record = record
        self.request_id = record.request_id
        self.body = body
        self.raw_body = raw_body

    @property
    def owner(self) -> str:
        """Whose state the request may use: that of its API key."""
        return self.request[OWNER]

    def context(self, request: ChatRequest | CompletionRequest | EmbeddingRequest) -> Context:
        """Read the headers: `nvext` fields are added to `request`; id, metadata and trace become the context."""
        sent = self.request.headers
        request.nvext = headers.nvext(sent, request.nvext)
        context = Context(
            headers.context_id(sent, self.request_id), headers.metadata(sent), traceparent=self.record.traceparent
        )
        context.tenant = self.request.get(TENANT)
        return context

    def warn(self, what: str, names: Sequence[str]) -> None:
        """Name in the answer's headers what was left out of the request."""
        if names:
            self.request.setdefault(headers.WARNINGS, []).append(headers.ignored(what, names))
