"""Memory moved between two processes with NIXL, and what needs no NIXL."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.nixl_connect import (
    Connector,
    Descriptor,
    Device,
    DeviceKind,
    OperationKind,
    OperationStatus,
    RdmaMetadata,
    SerializedDescriptor,
)


def needs_nixl() -> None:
    pytest.importorskip("nixl", reason="NIXL is not installed", exc_type=ImportError)


SIZE = 300_000


def content(seed: int) -> bytes:
    return bytes((seed + 7 * at) % 251 for at in range(SIZE))


async def _other_side(pipe: Connection) -> None:
    """Offers memory to be read, then memory to be written, in this order."""
    connector = Connector("other")
    with await connector.create_readable([Descriptor(content(1)), Descriptor(content(2))]) as readable:
        pipe.send(readable.metadata().model_dump_json())
        await readable.wait_for_completion()
    target = bytearray(SIZE)
    with await connector.create_writable(Descriptor(target)) as writable:
        pipe.send(writable.metadata().model_dump_json())
        await writable.wait_for_completion()
    pipe.send(bytes(target) == content(3))


def other_side(pipe: Connection) -> None:
    asyncio.run(_other_side(pipe))


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    needs_nixl()
    # Without fast network cards, UCX would probe for them for seconds.
    monkeypatch.setitem(os.environ, "UCX_TLS", "tcp,shm,self")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=other_side, args=(theirs,))
    process.start()
    yield ours
    process.join()
    assert process.exitcode == 0


async def test_memory_is_read_from_and_written_to_another_process(pipe: Connection) -> None:
    async def received() -> Any:
        return await asyncio.to_thread(pipe.recv)

    connector = Connector("ours")
    readable = RdmaMetadata.model_validate_json(await received())
    first, second = bytearray(SIZE), bytearray(SIZE)
    with pytest.raises(ValueError, match="the sizes must be equal"):
        await connector.begin_read(readable, Descriptor(first))
    with pytest.raises(ValueError, match="offers a read operation"):
        await connector.begin_write(Descriptor(first), readable)
    with await connector.begin_read(readable, [Descriptor(first), Descriptor(second)]) as reading:
        await reading.wait_for_completion()
        assert reading.status is OperationStatus.COMPLETE
        assert len(reading.results()) == 2
    assert (bytes(first), bytes(second)) == (content(1), content(2))

    writable = RdmaMetadata.model_validate_json(await received())
    with await connector.begin_write(Descriptor(content(3)), writable) as writing:
        await writing.wait_for_completion()
    assert await received() is True


async def test_an_operation_is_not_complete_before_the_other_side_acts() -> None:
    needs_nixl()
    connector = Connector()
    with await connector.create_readable(Descriptor(b"some bytes")) as readable:
        assert readable.status is OperationStatus.INITIALIZED
        assert readable.operation_kind is OperationKind.READ
    with pytest.raises(ValueError, match="bytes cannot be written to"):
        await connector.create_writable(Descriptor(b"some bytes"))


async def test_without_nixl_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(ImportError, match=r"NIXL is not installed .* pip install"):
        await Connector().create_readable(Descriptor(b"some bytes"))


def test_devices_are_known_by_their_names() -> None:
    assert Device("cuda:1") == Device((DeviceKind.CUDA, 1))
    assert (str(Device("CPU")), str(Device("cuda")), Device("cuda:3").id) == ("cpu", "cuda:0", 3)
    assert Device("cpu").kind.nixl_mem_type == "DRAM"
    for wrong in ("tpu", "cuda:x", ""):
        with pytest.raises(ValueError, match="a device is like"):
            Device(wrong)


def test_a_descriptor_is_where_the_bytes_are() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    descriptor = Descriptor((array, "cpu"))
    assert (descriptor.ptr, descriptor.size) == (array.ctypes.data, 24)
    with pytest.raises(ValueError, match="not contiguous"):
        Descriptor((array.T, "cpu"))
    for wrong in ("text", 3, None):
        with pytest.raises(TypeError, match="cannot be made of"):
            Descriptor(wrong)
    with pytest.raises(ValueError, match="at least one byte"):
        Descriptor(b"")


def test_metadata_can_be_a_field_of_a_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    model = pydantic.create_model("Model", remote=(RdmaMetadata, ...))
    metadata = RdmaMetadata(descriptors=[SerializedDescriptor(ptr=5, size=6)], notification_key="k", operation_kind=1)
    again = model.model_validate_json(model(remote=metadata).model_dump_json())
    assert again.remote == metadata


@given(text=st.text(max_size=40), packed=st.binary(max_size=40))
def test_metadata_that_is_none_is_a_value_error(text: str, packed: bytes) -> None:
    for written in (text, "b64:" + text, RdmaMetadata.packed(packed)[:-3]):
        try:
            RdmaMetadata(nixl_metadata=written).agent_metadata()
        except ValueError:
            pass
    if packed:
        assert RdmaMetadata(nixl_metadata=RdmaMetadata.packed(packed)).agent_metadata() == packed
