"""What arrives of the items a handler yields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamo.llm.exceptions import InvalidArgument, Unknown
from dynamo.runtime import Annotated, DistributedRuntime, RuntimeConfig


def test_a_tagged_dict_is_an_envelope_even_without_an_event() -> None:
    bare = {"_dynamo_annotated": True, "data": {"n": 1}, "id": None, "event": None, "comment": None, "error": None}
    envelope = Annotated.of(bare)
    assert envelope.data() == {"n": 1}
    assert (envelope.id(), envelope.event(), envelope.comments(), envelope.is_error()) == (None, None, None, False)
    assert Annotated.of({"_dynamo_annotated": True, "data": 1}).data() == 1


async def mixed(request: Any) -> AsyncIterator[Any]:
    shared = {"sequence": 0}
    match request:
        case "reused":
            for sequence in range(8):
                shared["sequence"] = sequence
                yield shared
        case "event":
            yield {"_dynamo_annotated": True, "event": "note", "comment": ["so"]}
            yield None
        case "error envelope":
            yield {"_dynamo_annotated": True, "event": "error", "comment": ["broken"]}
        case "unencodable":
            yield object()


@pytest.mark.parametrize("plane", ["memory", "tcp"])
async def test_items_events_and_errors_reach_a_plain_stream(plane: str, tmp_path: Any) -> None:
    config = RuntimeConfig.from_env(
        {"DYN_FILE_KV": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"},
        discovery_backend="memory" if plane == "memory" else "file",
        request_plane=plane,
    )
    async with DistributedRuntime(config=config) as runtime:
        endpoint = runtime.endpoint("a.b.c")
        serving = asyncio.create_task(endpoint.serve_endpoint(mixed))
        client = await endpoint.client()
        await client.wait_for_instances()

        async def ask(request: str) -> list[Any]:
            return [item async for item in await client.generate(request, annotated=False)]

        assert await ask("reused") == [{"sequence": n} for n in range(8)]
        assert await ask("event") == [None], "an event without data is no item of a plain stream"
        with pytest.raises(Unknown, match="broken"):
            await ask("error envelope")
        with pytest.raises(InvalidArgument, match="object"):
            await ask("unencodable")

        (instance,) = client.instances()
        assert instance.device_type == "cpu"
        assert instance.transport == plane
        assert getattr(instance.transport, "kind") == plane  # noqa: B009 - the record's own type is a plain name
        assert str(instance) == f"a/b/c/{instance.instance_id}"
        runtime.shutdown()
        await serving
