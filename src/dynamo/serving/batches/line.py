"""One line of a batch file, `{"custom_id", "method", "url", "body"}`, and the answer to its request."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from msgspec import Raw, Struct

from dynamo.api.responses.answers import ResponseObject, response_of
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.to_chat import responses_to_chat, with_responses_names
from dynamo.pipeline.validate import validate_chat, validate_embedding
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import BodyLimits, check_shape
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.runtime import Context
from dynamo.serving.ask import ask
from dynamo.serving.conversation import Conversation
from dynamo.serving.embedding import Embeddings
from dynamo.serving.request_template import RequestTemplate, fill_body
from dynamo.serving.served_model import ServedModel

BatchRequest = ChatRequest | CompletionRequest | EmbeddingRequest | ResponsesRequest

_DECODERS: dict[str, BodyDecoder[Any]] = {
    "/v1/chat/completions": BodyDecoder(ChatRequest),
    "/v1/completions": BodyDecoder(CompletionRequest),
    "/v1/embeddings": BodyDecoder(EmbeddingRequest),
    "/v1/responses": BodyDecoder(ResponsesRequest),
}


class BatchLine(Struct):
    custom_id: str
    url: str
    body: Raw
    method: str = "POST"

    def request(self, ignored: list[str] | None = None, template: RequestTemplate | None = None) -> BatchRequest:
        """Raises InvalidRequest, for unknown fields too unless `ignored` takes their names.

        `template` fills in what the body leaves out.
        """
        decoder, body = _DECODERS[self.url], bytes(self.body)
        filled = fill_body(template, body, decoder.kind) if template else body
        decoded: BatchRequest = decoder.decode(filled, ignored)
        return decoded


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


async def answer_request(model: ServedModel, request: BatchRequest, context: Context) -> dict[str, Any]:
    """The answer as its route would give it, without a stream; raises DynamoException."""
    match request:
        case EmbeddingRequest():
            validate_embedding(request)
            embeddings = Embeddings(model, request, context)
            try:
                answer: Any = await embeddings.answer()
            finally:
                await embeddings.close()
        case ResponsesRequest():
            answer = await _respond(model, request, context)
        case _:
            return (await ask(model, request, context=context)).body
    built: dict[str, Any] = msgspec.to_builtins(answer)
    return built


async def _respond(model: ServedModel, request: ResponsesRequest, context: Context) -> ResponseObject:
    for name in ("previous_response_id", "conversation"):
        if getattr(request, name) is not None:
            raise InvalidRequest.unsupported(name, "the lines of a batch do not share a state")
    request.store = False
    try:
        chat = responses_to_chat(request)
        validate_chat(chat)
        conversation = Conversation(model, chat, context)
        try:
            await conversation.prepare()
            completion = conversation.completion(await conversation.collect())
        finally:
            await conversation.close()
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    return response_of(request, f"resp_{uuid.uuid4().hex}", completion)
