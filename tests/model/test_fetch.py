"""Model files go from the worker that registered them to a reader that has none, over the request planes."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.register import register_card, unregister_llm
from dynamo.model import CardReader, FetchConfig, FileError, HubConfig, LoadedModel, ModelError, build_card, resolve
from dynamo.model.offer import OfferedFile
from dynamo.protocols.card import CardFile, ModelCard, ModelType
from dynamo.protocols.instance import Instance
from dynamo.protocols.model_files import CHUNK_BYTES, FileChunk, FileRequest
from dynamo.runtime import Context, DistributedRuntime, RuntimeConfig, records
from dynamo.runtime.names import FILES_ENDPOINT, INSTANCES, instance_key, split_key
from dynamo.runtime.plane.base import CancelStream, nothing_to_cancel
from dynamo.runtime.stream import Sink
from support import models
from support.gguf_writer import byte_level_metadata, write_gguf
from support.hub import Hub
from support.services import Nats
from support.waiting import until

Handler = Callable[[FileRequest], AsyncIterator[FileChunk]]


def card_of(path: Path) -> ModelCard:
    model = resolve(str(path), config=HubConfig(cache=Path("/nonexistent"), offline=True))
    return build_card(model, name="m", model_type=ModelType.Backend)


def elsewhere(card: ModelCard) -> ModelCard:
    """The card as a machine sees it on which none of its paths exist."""
    files = {role: msgspec.structs.replace(file, path=f"/worker{file.path}") for role, file in card.files.items()}
    return msgspec.structs.replace(card, files=files, source="/worker/model")


class Network:
    """Workers and a reader with nothing in common but discovery and the request plane."""

    def __init__(self, folder: Path, environ: dict[str, str], stack: AsyncExitStack) -> None:
        self.cache = folder / "cache"
        self._environ = {"DYN_FILE_KV": str(folder / "kv"), **environ}
        self._stack = stack

    async def runtime(self) -> DistributedRuntime:
        config = RuntimeConfig.from_env(self._environ)
        return await self._stack.enter_async_context(DistributedRuntime(config=config))

    async def worker(self, card: ModelCard) -> DistributedRuntime:
        runtime = await self.runtime()
        await register_card(runtime.endpoint("a.b.generate"), card)
        return runtime

    async def stranger(self, handler: Handler) -> DistributedRuntime:
        """A worker that answers for files as `handler` does."""
        runtime = await self.runtime()
        endpoint = runtime.endpoint(f"a.b.{FILES_ENDPOINT}")

        async def handle(request: Any) -> AsyncIterator[Any]:
            async for chunk in handler(msgspec.convert(request, FileRequest)):
                yield chunk

        runtime.own(endpoint.serve_endpoint(handle, graceful_shutdown=False), "a stranger")
        await until(lambda: runtime.discovery.get_prefix(instance_key(endpoint.id, runtime.instance_id)))
        return runtime

    async def open(self, card: ModelCard, hub: str | None = None, **limits: int) -> LoadedModel:
        runtime = await self.runtime()
        fetch = FetchConfig(cache=self.cache, **limits)
        offline = {"offline": True} if hub is None else {"endpoint": hub}
        config = HubConfig(cache=self.cache / "hub", fetch=fetch, **offline)

        async def senders() -> list[Instance]:
            listed = await runtime.discovery.get_prefix(f"{INSTANCES}a/b/{FILES_ENDPOINT}")
            return [records.decode_instance(*split_key(key), value) for key, value in listed.items()]

        return await CardReader(config, runtime.plane.channel).open(card, senders)

    def cached(self) -> list[Path]:
        return [entry for entry in self.cache.iterdir() if entry.is_file()]


@pytest.fixture(params=["tcp", "nats"])
async def network(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Network]:
    environ = {"DYN_REQUEST_PLANE": request.param}
    if request.param == "nats":
        nats: Nats = request.getfixturevalue("shared_nats")
        environ["NATS_SERVER"] = nats.url
    async with AsyncExitStack() as stack:
        yield Network(tmp_path, environ, stack)


@pytest.fixture
async def over_tcp(tmp_path: Path) -> AsyncIterator[Network]:
    async with AsyncExitStack() as stack:
        yield Network(tmp_path, {"DYN_REQUEST_PLANE": "tcp"}, stack)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return models.byte_level_model(tmp_path / "model")


def prompt(model: LoadedModel) -> list[int]:
    assert model.template is not None
    return model.tokenizer.encode(model.template.render([{"role": "user", "content": "hello, Köln"}]))


async def test_a_reader_without_files_and_hub_gets_the_model_from_its_worker(network: Network, folder: Path) -> None:
    card = card_of(folder)
    await network.worker(card)
    here, there = await network.open(card), await network.open(elsewhere(card))
    assert prompt(there) == prompt(here)
    assert (there.eos_token_ids, there.sampling, there.context_length) == (
        here.eos_token_ids,
        here.sampling,
        here.context_length,
    )


async def test_files_that_are_here_are_not_fetched(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    await over_tcp.worker(card)
    await over_tcp.open(card)
    assert not over_tcp.cache.exists()


async def test_a_gguf_model_comes_as_the_metadata_at_the_head_of_its_file(network: Network, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata())
    head = path.stat().st_size - 64
    with path.open("ab") as file:
        file.truncate(head + (1 << 32))
    card = card_of(path)
    await network.worker(card)
    assert prompt(await network.open(elsewhere(card), file_mb=1)) == prompt(await network.open(card))
    (cached,) = network.cached()
    assert cached.stat().st_size == head


async def test_a_custom_template_comes_from_the_worker_too(over_tcp: Network, folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine: {{ messages[0].content }}")
    model = resolve(str(folder), config=HubConfig(cache=tmp_path, offline=True))
    card = build_card(model, name="m", model_type=ModelType.Chat, custom_template_path=mine)
    await over_tcp.worker(card)
    template = (await over_tcp.open(elsewhere(card))).template
    assert template
    assert template.render([{"role": "user", "content": "hi"}]) == "mine: hi"


async def test_a_file_of_many_chunks_arrives_whole(network: Network, folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(
        b"{# " + random.Random(1).randbytes(15_000_000).hex().encode() + b" #}x"
    )
    card = card_of(folder)
    await network.worker(card)
    template = (await network.open(elsewhere(card))).template
    assert template
    assert template.render([{"role": "user", "content": "hi"}]) == "x"


async def test_the_cache_makes_the_worker_unnecessary(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    worker = await over_tcp.worker(card)
    first = await over_tcp.open(elsewhere(card))
    await worker.close()
    assert prompt(await over_tcp.open(elsewhere(card))) == prompt(first)


async def test_a_damaged_file_in_the_cache_is_fetched_again(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    await over_tcp.worker(card)
    first = await over_tcp.open(elsewhere(card))
    for path in over_tcp.cached():
        path.write_bytes(b"damaged")
    assert prompt(await over_tcp.open(elsewhere(card))) == prompt(first)


async def test_two_readers_may_fetch_the_same_model_at_once(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    await over_tcp.worker(card)
    first, second = await asyncio.gather(over_tcp.open(elsewhere(card)), over_tcp.open(elsewhere(card)))
    assert prompt(first) == prompt(second)


async def test_only_files_that_a_card_names_are_sent(over_tcp: Network, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    card = card_of(folder)
    await over_tcp.worker(card)
    for checksum in (hashlib.sha256(b"{}").hexdigest(), str(secret), f"../{secret.name}", "config"):
        stolen = msgspec.structs.replace(card, files={"config": CardFile(path="/worker/x", checksum=checksum)})
        with pytest.raises(FileError, match=r"no model card of this worker names a file|malformed checksum"):
            await over_tcp.open(stolen)


async def test_a_model_that_was_unregistered_is_not_sent(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    worker = await over_tcp.worker(card)
    await unregister_llm(worker.endpoint("a.b.generate"))
    with pytest.raises(FileError, match="no model card of this worker names a file"):
        await over_tcp.open(elsewhere(card))


async def corrupt(request: FileRequest) -> AsyncIterator[FileChunk]:
    yield FileChunk(2, b"[]")


async def empty(request: FileRequest) -> AsyncIterator[FileChunk]:
    yield FileChunk(100, b"")


async def too_much(request: FileRequest) -> AsyncIterator[FileChunk]:
    yield FileChunk(4, b"12345")


async def huge(request: FileRequest) -> AsyncIterator[FileChunk]:
    yield FileChunk(1 << 62, b"1")


async def growing(request: FileRequest) -> AsyncIterator[FileChunk]:
    yield FileChunk(2 * CHUNK_BYTES + request.offset, b"1" * CHUNK_BYTES)


async def dripping(request: FileRequest) -> AsyncIterator[FileChunk]:
    yield FileChunk(100, b"1")


async def nothing(request: FileRequest) -> AsyncIterator[FileChunk]:
    return
    yield


async def junk(request: FileRequest) -> AsyncIterator[Any]:
    yield {"size": "many", "data": 7}


async def refusing(request: FileRequest) -> AsyncIterator[FileChunk]:
    raise RuntimeError("no disk here")
    yield


HOSTILE: dict[Handler, str] = {
    corrupt: "its checksum is not the one on the model card",
    empty: "the worker's chunk at byte 0 of 100 does not fit",
    too_much: "the worker's chunk at byte 0 of 4 does not fit",
    huge: r"4611686018427387904 bytes are over the limit of 128 MiB for one file \(DYN_MODEL_FILE_MB\)",
    growing: "the worker's chunk at byte 262144 of 524288 does not fit",
    dripping: "the worker's chunk at byte 0 of 100 does not fit",
    nothing: "the worker ended without an answer",
    junk: "the worker sent an item that cannot be understood",
    refusing: "no disk here",
}


@pytest.mark.parametrize("handler", HOSTILE, ids=lambda handler: handler.__name__)
async def test_what_a_faulty_worker_sends_is_refused_with_the_reason(
    network: Network, folder: Path, handler: Handler
) -> None:
    await network.stranger(handler)
    with pytest.raises(FileError, match=rf"no worker sent it \(worker [a-z]+-\d+, \w+\.json: {HOSTILE[handler]}"):
        await network.open(elsewhere(card_of(folder)))
    assert not network.cache.exists()


async def test_other_workers_are_asked_when_one_is_faulty(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    for handler in HOSTILE:
        await over_tcp.stranger(handler)
    await over_tcp.worker(card)
    assert prompt(await over_tcp.open(elsewhere(card))) == prompt(await over_tcp.open(card))


async def test_a_worker_that_dies_midway_is_replaced_by_another(network: Network, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("x" * (3 * CHUNK_BYTES))
    card = card_of(folder)
    paths = {file.checksum: Path(file.path) for file in card.files.values()}
    reached = asyncio.Event()

    async def half(request: FileRequest) -> AsyncIterator[FileChunk]:
        if request.offset:
            reached.set()
            await asyncio.Event().wait()
        yield OfferedFile(paths[request.checksum], head_only=False).chunk(request.offset)

    dying = await network.stranger(half)
    opening = asyncio.create_task(network.open(elsewhere(card)))
    await reached.wait()
    await network.worker(card)
    await dying.close()
    assert prompt(await opening) == prompt(await network.open(card))


async def test_a_worker_that_does_not_answer_is_passed_over(
    over_tcp: Network, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: FileRequest) -> AsyncIterator[FileChunk]:
        await asyncio.Event().wait()
        yield FileChunk(0, b"")

    monkeypatch.setattr("dynamo.model.fetch.CHUNK_SECONDS", 0.2)
    await over_tcp.stranger(silent)
    with pytest.raises(FileError, match=r"no answer for 0\.2 s"):
        await over_tcp.open(elsewhere(card_of(folder)))


async def test_the_limits_name_the_size_and_the_setting(over_tcp: Network, folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"x" * (1 << 20))
    card = card_of(folder)
    await over_tcp.worker(card)
    with pytest.raises(FileError, match=r"over the limit of 1 MiB for all files of a model \(DYN_MODEL_FILES_MB\)"):
        await over_tcp.open(elsewhere(card), file_mb=2, total_mb=1)
    (folder / "chat_template.jinja").write_bytes(b"x" * ((1 << 20) + 1))
    bigger = card_of(folder)
    await over_tcp.stranger(lambda request: _one(folder / "chat_template.jinja", request))
    only = {"chat_template": bigger.files["chat_template"]}
    with pytest.raises(FileError, match=r"1048577 bytes are over the limit of 1 MiB for one file \(DYN_MODEL_FILE_"):
        await over_tcp.open(elsewhere(msgspec.structs.replace(bigger, files=only)), file_mb=1)


async def _one(path: Path, request: FileRequest) -> AsyncIterator[FileChunk]:
    yield OfferedFile(path, head_only=False).chunk(request.offset)


async def test_a_file_that_changed_at_the_worker_is_refused(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    await over_tcp.worker(card)
    models.write(folder / "config.json", {"max_position_embeddings": 7})
    with pytest.raises(FileError, match=r"config\.json: its checksum is not the one on the model card"):
        await over_tcp.open(elsewhere(card))


async def test_a_file_that_the_worker_lost_is_named(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    await over_tcp.worker(card)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileError, match=r"the worker cannot read .*tokenizer\.json: No such file"):
        await over_tcp.open(elsewhere(card))


async def test_a_cache_that_cannot_be_written_is_one_clear_error(over_tcp: Network, folder: Path) -> None:
    card = card_of(folder)
    await over_tcp.worker(card)
    over_tcp.cache.write_text("a file, not a folder")
    with pytest.raises(FileError, match=r"cannot store model files in .*cache: .* \(DYN_MODEL_CACHE"):
        await over_tcp.open(elsewhere(card))


async def test_the_hub_is_asked_when_no_worker_sends_the_files(over_tcp: Network, folder: Path) -> None:
    hub = Hub()
    hub.add("org/m", folder)
    hub.start()
    try:
        card = msgspec.structs.replace(elsewhere(card_of(folder)), source="org/m")
        await over_tcp.stranger(corrupt)
        assert prompt(await over_tcp.open(card, hub.endpoint)) == prompt(await over_tcp.open(card_of(folder)))
    finally:
        hub.stop()
    assert "tokenizer.json" in hub.fetched


async def test_the_worker_is_asked_before_the_hub(over_tcp: Network, folder: Path) -> None:
    hub = Hub()
    hub.add("org/m", folder)
    hub.start()
    try:
        card = card_of(folder)
        await over_tcp.worker(card)
        await over_tcp.open(msgspec.structs.replace(elsewhere(card), source="org/m"), hub.endpoint)
    finally:
        hub.stop()
    assert hub.fetched == []


async def test_inside_one_process_no_files_are_offered(folder: Path) -> None:
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        await register_card(runtime.endpoint("a.b.generate"), card_of(folder))
        assert await runtime.discovery.get_prefix(INSTANCES) == {}


@given(st.integers(0, 3 * CHUNK_BYTES), st.integers(0, 4 * CHUNK_BYTES) | st.integers(0, (1 << 63) - 1))
def test_a_chunk_is_never_more_than_the_file_has_there(tmp_path_factory: Any, size: int, offset: int) -> None:
    path = tmp_path_factory.getbasetemp() / "offered"
    data = bytes(size % 251 for _ in range(4)) * (size // 4 + 1)
    path.write_bytes(data[:size])
    chunk = OfferedFile(path, head_only=False).chunk(offset)
    assert chunk == FileChunk(size, data[:size][offset : offset + CHUNK_BYTES])


class Scripted:
    """A channel whose answers are given in advance."""

    ready = True
    draining = unheard = announced_end = False

    def __init__(self, chunks: list[FileChunk]) -> None:
        self._chunks = iter(chunks)

    async def open(self) -> None: ...

    def send(
        self, request: Any, context: Context, sink: Sink, *, item_type: Any = Any, columnar: bool = False
    ) -> CancelStream:
        chunk = next(self._chunks, None)
        if chunk is not None:
            sink.item(chunk)
        sink.end()
        return nothing_to_cancel


@given(
    st.lists(
        st.builds(
            FileChunk,
            st.integers(0, 12) | st.integers(0, 1 << 63),
            st.binary(max_size=12) | st.sampled_from([b"0123456789", b"9876543210"]),
        ),
        max_size=6,
    )
)
def test_whatever_a_worker_answers_the_file_is_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[FileChunk]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    wanted = b"0123456789"
    card = ModelCard(
        name="m",
        model_type=1,
        files={"config": CardFile(path="/worker/config.json", checksum=hashlib.sha256(wanted).hexdigest())},
    )
    at = Instance(instance_id=1, namespace="a", component="b", endpoint=FILES_ENDPOINT, transport="tcp", address="")
    config = HubConfig(cache=folder / "hub", offline=True, fetch=FetchConfig(cache=folder))
    channel = Scripted(chunks)

    async def senders() -> list[Instance]:
        return [at]

    async def read() -> None:
        await CardReader(config, lambda _: channel).open(card, senders)

    with pytest.raises(ModelError):
        asyncio.run(read())
    assert all(path.read_bytes() == wanted for path in folder.iterdir())
