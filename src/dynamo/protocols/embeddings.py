"""Request and response of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dynamo.protocols.completions import split_inputs
from dynamo.protocols.fields import FilledString, NvExt, TokenId


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    model: FilledString
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    user: FilledString | None = None
    nvext: NvExt | None = None

    def inputs(self) -> list[str | list[int]]:
        return split_inputs(self.input)


class Embedding(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """A list of numbers, or little-endian 32-bit floats encoded as base64."""


class EmbeddingUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
