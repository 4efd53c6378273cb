"""One line of a batch file: `{"custom_id", "method", "url", "body"}`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw, Struct

from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import BodyLimits, check_shape
from dynamo.protocols.errors import InvalidRequest
from dynamo.runtime import Context
from dynamo.serving.request_template import RequestTemplate, fill_body
from dynamo.serving.served_model import ServedModel

AnswerLine = Callable[[ServedModel, Any, Context], Awaitable[dict[str, Any]]]
"""The answer to a request as its route would give it, without a stream; raises DynamoException."""


class LineEndpoint(Struct, frozen=True):
    """How the lines with one URL are read and answered; each API says that of its own."""

    decoder: BodyDecoder[Any]
    answer: AnswerLine
    limits: tuple[str, ...] = ()
    """The fields of the body that limit the length of the answer."""


class BatchLine(Struct):
    custom_id: str
    url: str
    body: Raw
    method: str = "POST"

    def request(
        self, endpoint: LineEndpoint, ignored: list[str] | None = None, template: RequestTemplate | None = None
    ) -> Any:
        """Raises InvalidRequest, for unknown fields too unless `ignored` takes their names.

        `template` fills in what the body leaves out.
        """
        body = bytes(self.body)
        return endpoint.decoder.decode(fill_body(template, body, endpoint.limits) if template else body, ignored)


class LineLimits(Struct, frozen=True):
    """A line of a batch is bounded as the body of a request is."""

    size: int = 45 << 20
    """Bytes."""
    shape: BodyLimits = BodyLimits()

    def check(self, line: bytes) -> None:
        """Raises InvalidRequest."""
        if len(line) > self.size:
            message = f"The line exceeds the limit of {self.size >> 20} MB set by DYN_HTTP_BODY_LIMIT_MB."
            raise InvalidRequest(message, code="line_too_long")
        for _ in check_shape(line, self.shape):
            pass  # called in a thread: no other request waits between its steps


_line = BodyDecoder(BatchLine)


def read_line(line: bytes, *endpoints: str) -> BatchLine:
    """Raises InvalidRequest for a line that is not a request to one of these endpoints. Other fields are ignored."""
    read = _line.decode(line)
    if read.method != "POST":
        raise InvalidRequest.bad_value("method", f"must be POST, not {read.method[:64]!r}")
    if read.url not in endpoints:
        expected = " or ".join(endpoints) if len(endpoints) > 1 else f"{endpoints[0]}, the endpoint of the batch"
        raise InvalidRequest(f"url: must be {expected}, not {read.url[:64]!r}.", "url", "mismatched_endpoint")
    if not bytes(read.body).lstrip().startswith(b"{"):
        raise InvalidRequest("body: expected object.", "body", "invalid_type")
    return read
