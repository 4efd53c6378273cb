"""A frontend without the files of a model: they come from its workers, and meanwhile the model is loading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dynamo.model import HubConfig
from dynamo.model.offer import OfferedFile
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType
from dynamo.protocols.errors import Unavailable
from dynamo.protocols.model_files import FileChunk
from dynamo.router import RoutingConfig
from dynamo.runtime import DistributedRuntime, RuntimeConfig, records
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import FILES_ENDPOINT, card_key
from dynamo.runtime.plane.memory import MemoryHub, MemoryPlane
from dynamo.serving import card_version
from dynamo.serving.card_version import CardVersion
from dynamo.serving.models import Models
from support.toys import toy_card, toy_folder
from support.waiting import until


class Worker:
    """Puts its card on the network with paths that do not exist here, and sends the files itself."""

    def __init__(self, runtime: DistributedRuntime, card: ModelCard) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.damaged = False
        self._runtime = runtime
        self._files = {file.checksum: OfferedFile(Path(file.path), head_only=False) for file in card.files.values()}
        files = {role: structs.replace(file, path=f"/worker{file.path}") for role, file in card.files.items()}
        self._card = structs.replace(card, files=files, source="/worker", serves_files=True)

    async def join(self) -> None:
        endpoint = self._runtime.endpoint("a.b.c")
        await self._runtime.discovery.put(card_key(endpoint.id, self._runtime.instance_id), records.encode(self._card))
        self._runtime.own(endpoint.serve_endpoint(self._generate), "a worker")

    def send_files(self) -> None:
        files = self._runtime.endpoint(f"a.b.{FILES_ENDPOINT}")
        self._runtime.own(files.serve_endpoint(self._send), "its files")

    async def _generate(self, request: Any) -> AsyncIterator[Any]:
        yield request

    async def _send(self, request: dict[str, Any]) -> AsyncIterator[FileChunk]:
        self.asked.set()
        await self.may_answer.wait()
        yield FileChunk(2, b"{}") if self.damaged else self._files[request["checksum"]].chunk(request["offset"])


class Network:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._card = toy_card(toy_folder(folder / "model"))

    async def _runtime(self) -> DistributedRuntime:
        config = RuntimeConfig.from_env({"DYN_FILE_KV": str(self._folder / "kv")})
        return await self._stack.enter_async_context(DistributedRuntime(config=config))

    async def worker(self) -> Worker:
        return Worker(await self._runtime(), self._card)

    async def models(self) -> Models:
        hub = HubConfig.from_env({"HF_HUB_OFFLINE": "1", "HOME": str(self._folder)})
        models = Models(await self._runtime(), RoutingConfig(), hub)
        self._stack.push_async_callback(models.close)
        await models.start()
        return models


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with AsyncExitStack() as stack:
        yield Network(tmp_path, stack)


async def test_a_model_is_loading_until_its_worker_has_sent_the_files(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    models, worker = await network.models(), await network.worker()
    worker.may_answer.clear()
    worker.send_files()
    await worker.join()
    await worker.asked.wait()
    with pytest.raises(Unavailable, match="'toy' is loading"):
        models.get("toy")
    assert models.is_loading
    worker.may_answer.set()
    await until(models.served)
    assert models.get("toy").preprocessor
    assert caplog.text.count("fetching 4 files of model 'toy' from its workers") == 1
    assert caplog.text.count("fetched 4 files of model 'toy'") == 1


async def test_the_address_of_the_files_may_come_after_the_card(network: Network) -> None:
    models, worker = await network.models(), await network.worker()
    await worker.join()
    await until(lambda: models.readiness() == {"toy": False})
    worker.send_files()
    await until(models.served)


async def test_a_worker_that_leaves_midway_is_replaced_by_one_that_joined_meanwhile(network: Network) -> None:
    models, first, second = await network.models(), await network.worker(), await network.worker()
    first.may_answer.clear()
    first.send_files()
    await first.join()
    await first.asked.wait()
    second.send_files()
    await second.join()
    await until(lambda: len(models.instances()) == 4)
    await first._runtime.close()
    await until(models.served)


async def test_a_model_whose_files_could_not_be_had_is_tried_again_when_a_worker_joins(
    network: Network, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_version, "FIRST_PAUSE", 3600.0)
    models, faulty, sound = await network.models(), await network.worker(), await network.worker()
    faulty.damaged = True
    faulty.send_files()
    await faulty.join()
    await until(lambda: "cannot serve model 'toy'" in caplog.text)
    assert "its checksum is not the one on the model card" in caplog.text
    assert "trying again in 3600 s, or as soon as a worker joins" in caplog.text
    assert not models.served()
    assert "its checksum is not the one on the model card" in str(models.failures()["toy"])
    sound.send_files()
    await sound.join()
    await until(models.served)
    assert not models.failures()


async def test_a_model_is_served_once_its_worker_sends_sound_files_although_discovery_does_not_change(
    network: Network, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_version, "FIRST_PAUSE", 0.01)
    models, worker = await network.models(), await network.worker()
    worker.damaged = True
    worker.send_files()
    await worker.join()
    await until(lambda: "cannot serve model 'toy'" in caplog.text)
    assert not models.served()
    worker.damaged = False
    await until(models.served)


async def test_a_model_is_served_once_its_files_can_be_stored(
    network: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_version, "FIRST_PAUSE", 0.01)
    obstacle = tmp_path / ".cache"
    obstacle.write_text("not a folder")
    models, worker = await network.models(), await network.worker()
    worker.send_files()
    await worker.join()
    await until(lambda: "cannot store model files in" in caplog.text)
    assert not models.served()
    obstacle.unlink()
    await until(models.served)


def test_the_pause_between_attempts_doubles_up_to_a_minute() -> None:
    instances = InstanceSet("toy", MemoryPlane(MemoryHub()))
    card = ModelCard(name="toy", model_type=ModelType.Chat.value)
    pauses = CardVersion(card, instances, lambda _: ModelRuntimeConfig()).pauses
    assert [pauses.pause() for _ in range(9)] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
