"""Requests and answers of Ollama's API. Unknown fields are ignored, as Ollama does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from dynamo.api.answers.errors import Dialect
from dynamo.protocols.chat import Tool
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.fields import (
    FilledString,
    JsonObject,
    Penalty,
    RepetitionPenalty,
    StopText,
    Temperature,
    TopK,
    TopP,
)


class OllamaOptions(Struct, kw_only=True, omit_defaults=True):
    num_predict: Annotated[int, Meta(ge=-2, le=2**20)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=32)] | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class OllamaFunction(Struct, kw_only=True):
    name: str
    arguments: JsonObject = {}


class OllamaCall(Struct, kw_only=True, omit_defaults=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(Struct, kw_only=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None


class OllamaFields(Struct, kw_only=True, omit_defaults=True):
    model: FilledString
    stream: bool = True
    format: str | JsonObject | None = None
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: Any = None
    """How long to keep the model loaded: ignored."""


class OllamaChatRequest(OllamaFields, kw_only=True, omit_defaults=True):
    messages: list[OllamaMessage] = []
    tools: list[Tool] | None = None


class OllamaGenerateRequest(OllamaFields, kw_only=True, omit_defaults=True):
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    suffix: str | None = None


class OllamaEmbedRequest(Struct, kw_only=True, omit_defaults=True):
    model: FilledString
    input: str | list[str] = ""
    truncate: bool | None = None
    """Unless false, an input that is too long for the model is cut at its end."""
    dimensions: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    keep_alive: Any = None


class OllamaEmbeddingsRequest(Struct, kw_only=True, omit_defaults=True):
    """The older form of an embed request."""

    model: FilledString
    prompt: str = ""
    keep_alive: Any = None


class OllamaShowRequest(Struct, kw_only=True, omit_defaults=True):
    model: str | None = None
    name: str | None = None
    """The older word for `model`."""


class OllamaReply(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaAnswer(Struct, kw_only=True):
    """One line of a stream, or the whole answer: of a chat with `message`, of a generation with `response`."""

    model: str
    created_at: str
    message: OllamaReply | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaEmbeddings(Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbedding(Struct, kw_only=True):
    embedding: list[float]


class OllamaError(Struct, kw_only=True):
    error: str

    @staticmethod
    def of(error: DynamoException) -> OllamaError:
        return OllamaError(error=error.public_message)


OLLAMA = Dialect(OllamaError, lambda error, request_id, status: OllamaError.of(error))
