"""Embeddings of texts.

What a worker registered with `ModelType.Embedding` gets and must yield:

`ModelInput.Tokens`: gets one request per input, `{"model", "token_ids", "dimensions"}` (`dimensions` is None if the
client set none), and yields one item, `{"embedding": [numbers]}`.

`ModelInput.Text`: gets the client's request and yields one item, OpenAI's list object
`{"data": [{"index", "embedding"}, …], "usage"}`, in which an embedding may be numbers or base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dynamo.pipeline.preprocess import Preprocessor
from dynamo.protocols.card import ModelType
from dynamo.protocols.embeddings import Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from dynamo.protocols.errors import InvalidRequest, ProtocolError
from dynamo.runtime.stream import FirstAnswer
from dynamo.serving.request import ModelRequest

T = TypeVar("T")
Vectors = list[list[float]]


class _TokenResponse(Struct):
    embedding: list[float]


class _TextEntry(Struct):
    embedding: list[float] | str
    index: int | None = None


class _EmbeddingResponse(Struct):
    data: list[_TextEntry]
    usage: EmbeddingUsage | None = None


class Embeddings(ModelRequest[EmbeddingRequest]):
    model_type = ModelType.Embedding

    async def answer(self) -> EmbeddingList:
        vectors, usage = await self.vectors()
        shown: Sequence[list[float] | str] = vectors
        if self.request.encoding_format == "base64":
            shown = [base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() for vector in vectors]
        return EmbeddingList(
            data=[Embedding(index=index, embedding=vector) for index, vector in enumerate(shown)],
            model=self.model.name,
            usage=usage,
        )

    async def vectors(self, *, truncate: bool = False) -> tuple[Vectors, EmbeddingUsage]:
        """One vector per input. `truncate` cuts inputs that are too long, where the worker takes tokens."""
        preprocessor = self.model.preprocessor
        vectors, usage = await (
            self._from_text() if preprocessor is None else self._from_tokens(preprocessor, truncate)
        )
        for vector in vectors:
            _check(vector, self.request.dimensions)
        return vectors, usage

    async def _from_tokens(self, preprocessor: Preprocessor, truncate: bool) -> tuple[Vectors, EmbeddingUsage]:
        request = self.request
        inputs = await preprocessor.embedding(request, truncate=truncate)
        items = []
        for ids in inputs:
            item = FirstAnswer()
            items.append(item)
            one: dict[str, Any] = {"model": request.model, "token_ids": ids, "dimensions": request.dimensions}
            if request.nvext is not None:
                one["nvext"] = msgspec.to_builtins(request.nvext)
            await self._deliver(one, self._next_context(), item)
        values = await asyncio.gather(*(item.value for item in items))
        count = sum(map(len, inputs))
        usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
        return [_converted(value, _TokenResponse).embedding for value in values], usage

    async def _from_text(self) -> tuple[Vectors, EmbeddingUsage]:
        item = FirstAnswer()
        await self.relay(item)
        answer, wanted = _converted(await item.value, _EmbeddingResponse), len(self.request.inputs())
        if len(answer.data) != wanted:
            raise ProtocolError(f"the worker gave {len(answer.data)} embeddings for {wanted} inputs")
        ordered = sorted(answer.data, key=lambda one: one.index or 0)
        usage = answer.usage or EmbeddingUsage(prompt_tokens=0, total_tokens=0)
        return [_numbers(one.embedding) for one in ordered], usage


def _numbers(embedding: list[float] | str) -> list[float]:
    if not isinstance(embedding, str):
        return embedding
    try:
        raw = base64.b64decode(embedding, validate=True)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    except (binascii.Error, struct.error) as error:
        raise ProtocolError(f"the worker's embedding is not base64 of 32-bit floats: {error}") from None


def _check(vector: list[float], dimensions: int | None) -> None:
    if not vector or not all(map(math.isfinite, vector)):
        raise ProtocolError("the worker's embedding has no numbers, or some that are not finite")
    if dimensions is not None and len(vector) != dimensions:
        message = f"dimensions: this model's embeddings have {len(vector)} numbers, not {dimensions}."
        raise InvalidRequest(message, "dimensions", "invalid_value")


def _converted(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the worker's answer is not an embedding: {error}") from None
