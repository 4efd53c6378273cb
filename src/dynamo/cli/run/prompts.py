"""The lines of a batch: `{"text": …}`, or OpenAI's `{"custom_id": …, "method": …, "url": …, "body": …}`."""

from __future__ import annotations

import uuid
from typing import Any, Protocol

import msgspec
from msgspec import structs

from dynamo.api.answers.errors import error_answer
from dynamo.api.catalog import line_endpoints
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.errors import DynamoException, InvalidRequest
from dynamo.serving.ask import Answer, RequestDefaults
from dynamo.serving.batches.line import BatchLine, read_line
from dynamo.serving.request_template import RequestTemplate

Request = ChatRequest | CompletionRequest

_URLS = ("/v1/chat/completions", "/v1/completions")
_ENDPOINTS = line_endpoints()


class BatchPrompt(Protocol):
    """One line: its request, and the record of its outcome."""

    ignored: list[str]
    """The unknown fields that were left out of the request."""

    def request(self) -> Request:
        """Raises DynamoException for a request that is not valid."""

    def answered(self, answer: Answer) -> dict[str, Any]: ...

    def failed(self, error: DynamoException) -> dict[str, Any]: ...


class BadLine(Exception):
    """The line is not a prompt."""

    def __init__(self, why: str, custom_id: str | None = None) -> None:
        super().__init__(why)
        self._custom_id = custom_id

    def record(self, line: int) -> dict[str, Any]:
        message = f"line {line}: {self}"
        if self._custom_id is None:
            return {"line": line, "error": message}
        error = {"code": "invalid_request", "message": message}
        return {"id": _new_id(), "custom_id": self._custom_id, "response": None, "error": error}


class TextPrompt:
    """The plain form: a text in, a response out. Other fields of the line are copied into the record."""

    def __init__(self, fields: dict[str, Any], model: str, defaults: RequestDefaults) -> None:
        self.ignored: list[str] = []
        self._fields = fields
        self._text = fields["text"]
        self._model = model
        self._defaults = defaults

    def request(self) -> Request:
        return self._defaults.chat(self._model, [Message(role="user", content=self._text)])

    def answered(self, answer: Answer) -> dict[str, Any]:
        record = self._fields | {
            "response": answer.text,
            "tokens_in": answer.tokens_in,
            "tokens_out": answer.tokens_out,
            "elapsed_ms": round(answer.elapsed * 1000),
        }
        if answer.finish_reason:
            record["finish_reason"] = answer.finish_reason
        return record

    def failed(self, error: DynamoException) -> dict[str, Any]:
        return self._fields | {"error": error.message}


class OpenAIPrompt:
    """A line of OpenAI's Batch API."""

    def __init__(self, line: BatchLine, template: RequestTemplate | None) -> None:
        self.ignored: list[str] = []
        self._line = line
        self._template = template
        self._id = _new_id()

    def request(self) -> Request:
        """Unknown fields of the body are ignored, as over HTTP."""
        request = self._line.request(_ENDPOINTS[self._line.url], self.ignored, self._template)
        assert isinstance(request, Request)
        return request

    def answered(self, answer: Answer) -> dict[str, Any]:
        return self._record(200, answer.body)

    def failed(self, error: DynamoException) -> dict[str, Any]:
        return self._record(error.status, msgspec.to_builtins(error_answer(error, self._id)))

    def _record(self, status: int, body: dict[str, Any]) -> dict[str, Any]:
        response = {"status_code": status, "request_id": self._id, "body": body}
        return {"id": self._id, "custom_id": self._line.custom_id, "response": response, "error": None}


def read_prompt(
    line: bytes, *, model: str, defaults: RequestDefaults, template: RequestTemplate | None = None
) -> BatchPrompt:
    """Raises BadLine, whose message is for the author of the file."""
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine(f'must be an object such as {{"text": …}}, not {type(value).__name__}')
    if "custom_id" in value or "body" in value:
        return _openai(line, value.get("custom_id"), template)
    text = value.get("text")
    if not isinstance(text, str):
        raise BadLine('has no text: write {"text": "…"}' if text is None else "its text must be a string")
    limit = value.get("max_tokens")
    if limit is not None:
        if type(limit) is not int or limit < 1:
            raise BadLine(f"its max_tokens must be a whole number of at least 1, not {limit}")
        defaults = structs.replace(defaults, max_completion_tokens=limit)
    return TextPrompt(value, model, defaults)


def _openai(line: bytes, custom_id: object, template: RequestTemplate | None) -> OpenAIPrompt:
    try:
        return OpenAIPrompt(read_line(line, *_URLS), template)
    except InvalidRequest as error:
        raise BadLine(error.message, custom_id if isinstance(custom_id, str) else None) from None


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
