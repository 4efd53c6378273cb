"""POST /v1/embeddings.

What a worker registered with `ModelType.Embedding` is asked, and answers with:

`ModelInput.Tokens`: one request per input, `{"model", "token_ids", "dimensions"}` (the last is None where the client
left it open); it yields one item, `{"embedding": [numbers]}`.

`ModelInput.Text`: the client's request as it came; it yields one item, OpenAI's list object
`{"data": [{"index", "embedding"}, …], "usage"}`, in which an embedding may be numbers or base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from msgspec import Struct

from dynamo.frontend.answers.answer import json_response
from dynamo.frontend.answers.nvext import with_headers
from dynamo.frontend.answers.one_item import OneItem
from dynamo.frontend.measure.exchange import EXCHANGE
from dynamo.pipeline.validate import validate_embedding
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidRequest, ProtocolError
from dynamo.protocols.openai_embeddings import Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from dynamo.serving.generation import Generation
from dynamo.serving.models import ServedModel

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


class _Vector(Struct):
    embedding: list[float]


class _Told(Struct):
    embedding: list[float] | str
    index: int | None = None


class _ToldList(Struct):
    data: list[_Told]
    usage: EmbeddingUsage | None = None


async def embeddings(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    asked = frontend.bodies.embedding.decode(await frontend.body(request), frontend.ignore_unknown_fields)
    validate_embedding(asked)
    asked.nvext = with_headers(asked.nvext, request.headers)
    model = frontend.model(asked.model, ModelType.Embedding)
    generation = Generation(model, frontend.context(request), request[EXCHANGE])
    try:
        if model.preprocessor is None:
            vectors, usage = await _from_text(generation, asked)
        else:
            vectors, usage = await _from_tokens(generation, model, asked)
    finally:
        await generation.close()
    for vector in vectors:
        _check(vector, asked.dimensions)
    shown: Sequence[list[float] | str] = vectors
    if asked.encoding_format == "base64":
        shown = [base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() for vector in vectors]
    answer = EmbeddingList(
        data=[Embedding(index=index, embedding=vector) for index, vector in enumerate(shown)],
        model=model.name,
        usage=usage,
    )
    return json_response(answer, request_id)


async def _from_tokens(
    generation: Generation, model: ServedModel, asked: EmbeddingRequest
) -> tuple[list[list[float]], EmbeddingUsage]:
    assert model.preprocessor
    inputs = await model.preprocessor.embedding(asked)
    items = []
    for ids in inputs:
        item = OneItem()
        items.append(item)
        one: dict[str, Any] = {"model": asked.model, "token_ids": ids, "dimensions": asked.dimensions}
        if asked.nvext is not None:
            one["nvext"] = msgspec.to_builtins(asked.nvext)
        await generation.relay(one, item)
    vectors = [_converted(value, _Vector).embedding for value in await asyncio.gather(*(item.value for item in items))]
    count = sum(map(len, inputs))
    return vectors, EmbeddingUsage(prompt_tokens=count, total_tokens=count)


async def _from_text(generation: Generation, asked: EmbeddingRequest) -> tuple[list[list[float]], EmbeddingUsage]:
    item = OneItem()
    await generation.relay(msgspec.to_builtins(asked), item)
    told = _converted(await item.value, _ToldList)
    if len(told.data) != len(asked.inputs()):
        raise ProtocolError(f"the worker gave {len(told.data)} embeddings for {len(asked.inputs())} inputs")
    ordered = sorted(told.data, key=lambda one: one.index or 0)
    usage = told.usage or EmbeddingUsage(prompt_tokens=0, total_tokens=0)
    return [_numbers(one.embedding) for one in ordered], usage


def _numbers(embedding: list[float] | str) -> list[float]:
    if not isinstance(embedding, str):
        return embedding
    try:
        raw = base64.b64decode(embedding, validate=True)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    except (binascii.Error, struct.error) as error:
        raise ProtocolError(f"the worker's embedding is no base64 of 32-bit floats: {error}") from None


def _check(vector: list[float], dimensions: int | None) -> None:
    if not vector or not all(map(math.isfinite, vector)):
        raise ProtocolError("the worker's embedding has no numbers, or some that are not finite")
    if dimensions is not None and len(vector) != dimensions:
        message = f"dimensions: this model's embeddings have {len(vector)} numbers, not {dimensions}."
        raise InvalidRequest(message, "dimensions", "invalid_value")


def _converted(value: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the worker's answer is no embedding: {error}") from None
