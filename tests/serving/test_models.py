"""Which models a frontend serves, as cards and instances come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.llm import ModelInput, ModelType
from dynamo.llm.register import register_card
from dynamo.model import HubConfig
from dynamo.protocols.card import CardFile, ModelCard, WorkerType
from dynamo.protocols.errors import DynamoException, ModelNotFound, Unavailable
from dynamo.router import RoutingConfig
from dynamo.runtime import DistributedRuntime, Endpoint, Local, RuntimeConfig
from dynamo.runtime.names import CARDS, INSTANCES
from dynamo.serving.models import Models
from support.waiting import until


async def say(request: Any) -> AsyncIterator[Any]:
    yield request


class Worker:
    """A worker whose card is put there whatever others say."""

    def __init__(self, local: Local, card: ModelCard, endpoint: str = "a.b.c") -> None:
        self.runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
        self.endpoint: Endpoint = self.runtime.endpoint(endpoint)
        self._card = card
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Worker:
        await self.runtime.start()
        await register_card(self.endpoint, self._card)
        self._task = asyncio.create_task(self.endpoint.serve_endpoint(say))
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.runtime.shutdown()
        assert self._task
        await self._task
        await self.runtime.close()


def card(name: str = "m", **options: Any) -> ModelCard:
    return ModelCard(name=name, model_type=ModelType.Chat.value, model_input=ModelInput.Text, **options)


async def models_of(local: Local, mode: str = "round-robin") -> Models:
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(mode=mode), HubConfig.from_env({"HF_HUB_OFFLINE": "1"}))
    await models.start()
    return models


def refusal(models: Models, name: str) -> type[Exception] | None:
    try:
        models.get(name)
    except DynamoException as error:
        return type(error)
    return None


async def test_models_appear_with_their_first_worker_and_go_with_their_last() -> None:
    local = Local()
    models = await models_of(local)
    assert models.served() == []
    async with Worker(local, card()):
        await until(models.served)
        async with Worker(local, card()):
            await until(lambda: len(models.get("m").router.instances) == 2)
        await until(lambda: len(models.get("m").router.instances) == 1)
    await until(lambda: refusal(models, "m") is ModelNotFound)
    assert models.served() == []
    await models.close()


async def test_the_log_says_that_a_model_can_be_served_once_an_instance_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dynamo.serving.models")
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    endpoint = runtime.endpoint("a.b.c")
    await register_card(endpoint, card())
    models = await models_of(local)  # has loaded the model of the card
    assert "can be served" not in caplog.text
    serving = asyncio.create_task(endpoint.serve_endpoint(say))
    await models.wait_for("m")
    await until(lambda: "model 'm' can be served" in caplog.text)
    runtime.shutdown()
    await serving
    await runtime.close()
    await models.close()


async def test_a_model_whose_workers_restart_is_unavailable_and_keeps_its_router() -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), restart_seconds=3600)
    await models.start()
    async with Worker(local, card()):
        router = (await models.wait_for("m")).router
    await until(lambda: not models.readiness())  # its card has left too, not only its address
    with pytest.raises(Unavailable, match="'m' has lost its last worker"):
        models.get("m")
    assert models.served() == []
    async with Worker(local, card()):
        assert (await models.wait_for("m")).router is router
    await models.close()
    await runtime.close()


async def test_requests_wait_for_the_first_worker_of_a_model_that_had_one() -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), restart_seconds=3600, wait_seconds=3600)
    await models.start()
    with pytest.raises(ModelNotFound):
        await models.arrive("m")
    async with Worker(local, card()):
        assert await models.wait_for("m") is await models.arrive("m")
    await until(lambda: not models.readiness())
    assert dict(models.waiting) == {"m": 0}
    assert [model.name for model in models.listed()] == ["m"]
    waiting = [asyncio.create_task(models.arrive("m")) for _ in range(3)]
    await until(lambda: models.waiting["m"] == 3)
    waiting[0].cancel()
    await until(lambda: models.waiting["m"] == 2)
    async with Worker(local, card()):
        assert [model.name for model in await asyncio.gather(*waiting[1:])] == ["m", "m"]
    assert models.waiting["m"] == 0
    await models.close()
    await runtime.close()


async def test_a_model_stays_listed_while_its_last_worker_leaves_and_its_next_one_comes() -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), restart_seconds=3600, wait_seconds=3600)
    await models.start()
    async with Worker(local, card()):
        await models.wait_for("m")
    next_worker = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await next_worker.start()
    await register_card(next_worker.endpoint("a.b.c"), card())  # it does not take requests yet
    await until(lambda: models.readiness() == {"m": False})
    assert [model.name for model in models.listed()] == ["m"]
    await next_worker.close()
    await models.close()
    await runtime.close()


async def test_a_request_waits_no_longer_than_it_may() -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), restart_seconds=3600, wait_seconds=0.01)
    await models.start()
    async with Worker(local, card()):
        await models.wait_for("m")
    await until(lambda: not models.readiness())
    with pytest.raises(Unavailable, match="'m' has lost its last worker"):
        await models.arrive("m")
    assert models.waiting["m"] == 0
    await models.close()
    await runtime.close()


async def test_requests_wait_while_workers_of_another_card_take_over() -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), wait_seconds=3600)
    await models.start()
    async with Worker(local, card(context_length=8)):
        await models.wait_for("m")
        new = Worker(local, card(context_length=16), "new.b.c")
        await new.__aenter__()
    found = await models.arrive("m")
    await until(lambda: models.get("m").card.context_length == 16)
    assert found.name == "m"
    await new.__aexit__()
    await models.close()
    await runtime.close()


async def test_versions_of_a_model_share_its_requests_by_their_workers() -> None:
    local = Local()
    models = await models_of(local)
    async with Worker(local, card(context_length=8), "old.b.c") as old:
        await models.wait_for("m")
        leaving = models.get("m")
        async with Worker(local, card(context_length=16), "new.b.c"), Worker(local, card(context_length=16), "new.b.c"):
            await until(lambda: [len(model.router.instances) for model in models.versions()] == [1, 2])
            assert [models.get("m").card.context_length for _ in range(6)].count(8) == 2
            assert [model.card.context_length for model in models.served()] == [8]
            assert leaving.successor() is None
            assert leaving.peers()[0].holder(old.runtime.instance_id) is leaving
            old.runtime.shutdown()
            await until(lambda: len(models.versions()) == 1)
            # What was prepared for the old version goes to the new one, as their files do not differ.
            [new] = models.versions()
            assert leaving.successor() is new is models.get("m")
            placement = await leaving.place({})
            assert placement.instance_id in new.router.instances
            placement.release()
    await models.close()


async def test_a_request_is_not_sent_to_a_version_whose_tokens_differ() -> None:
    local = Local()
    models = await models_of(local)
    files = [{"tokenizer": CardFile(path="t", checksum=each)} for each in ("one", "other")]
    async with Worker(local, card(files=files[0]), "old.b.c") as old:
        leaving = await models.wait_for("m")
        async with Worker(local, card(files=files[1]), "new.b.c"):
            await until(lambda: len(models.versions()) == 2)
            old.runtime.shutdown()
            await until(lambda: len(models.versions()) == 1)
            with pytest.raises(Unavailable):
                await leaving.place({})
            assert leaving.successor() is models.get("m")
    await models.close()


async def test_a_model_whose_workers_do_not_return_in_time_is_unknown() -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), restart_seconds=0.01)
    await models.start()
    async with Worker(local, card()):
        await models.wait_for("m")
    await until(lambda: refusal(models, "m") is ModelNotFound)
    await models.close()
    await runtime.close()


async def test_an_unknown_model_is_refused_with_those_that_are_served() -> None:
    local = Local()
    models = await models_of(local)
    async with Worker(local, card("b/eta")), Worker(local, card("alpha")):
        await until(lambda: len(models.served()) == 2)
        with pytest.raises(ModelNotFound, match="Served here: alpha, b/eta"):
            models.get("gamma")
    await models.close()


async def test_a_card_without_its_instance_is_not_ready() -> None:
    local = Local()
    models = await models_of(local)
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    await register_card(runtime.endpoint("a.b.c"), card())
    await until(lambda: refusal(models, "m") is Unavailable)
    with pytest.raises(Unavailable, match="'m' is loading"):
        models.get("m")
    assert models.is_loading
    await runtime.close()
    await models.close()


async def test_a_model_is_loading_from_its_announcement_until_it_is_served() -> None:
    local = Local()
    models = await models_of(local)
    assert not models.is_loading
    models.expect("m")
    with pytest.raises(Unavailable, match="'m' is loading"):
        models.get("m")
    assert refusal(models, "another") is ModelNotFound
    assert models.is_loading
    async with Worker(local, card()):
        await until(models.served)
        assert not models.is_loading
    await until(lambda: refusal(models, "m") is ModelNotFound)
    assert not models.is_loading
    await models.close()


async def test_a_worker_that_takes_its_endpoint_back_is_not_loading() -> None:
    local = Local()
    models = await models_of(local)
    async with Worker(local, card()) as worker:
        await until(models.served)
        await worker.endpoint.unregister_endpoint_instance()
        await until(lambda: refusal(models, "m") is Unavailable)
        with pytest.raises(Unavailable, match="not ready"):
            models.get("m")
        assert not models.is_loading
    await models.close()


async def test_a_model_that_joins_others_does_not_make_the_server_loading() -> None:
    local = Local()
    models = await models_of(local)
    async with Worker(local, card("first")):
        await until(models.served)
        models.expect("second")
        assert refusal(models, "second") is Unavailable
        assert not models.is_loading
    await models.close()


async def test_no_model_is_missing_before_the_workers_are_known() -> None:
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=Local())
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({"HF_HUB_OFFLINE": "1"}))
    assert models.is_loading
    assert refusal(models, "m") is Unavailable
    await runtime.start()
    await models.start()
    assert refusal(models, "m") is ModelNotFound
    await models.close()
    await runtime.close()


async def test_a_worker_that_disagrees_waits_until_the_others_are_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that start together may both get past the check at registration: the frontend decides then."""

    async def unchecked(*_: Any) -> None: ...

    monkeypatch.setattr("dynamo.model.registration._reject_disagreement", unchecked)
    local = Local()
    models = await models_of(local)
    first = Worker(local, card(context_length=100))
    await first.__aenter__()
    await until(models.served)
    async with Worker(local, card(context_length=200)) as second:
        await until(lambda: "refusing the worker" in caplog.text)
        await until(lambda: len(models.instances()) == 2)
        assert models.get("m").router.instances.ids() == [first.runtime.instance_id]
        await first.__aexit__()
        await until(lambda: models.served() and models.get("m").card.context_length == 200)
        assert models.get("m").router.instances.ids() == [second.runtime.instance_id]
    await models.close()


@pytest.mark.parametrize(
    ("kind", "words"), [(WorkerType.Prefill, "prefill worker"), (WorkerType.Encode, "serves other workers")]
)
async def test_a_worker_that_works_for_others_gets_no_requests(
    kind: WorkerType, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    local = Local()
    models = await models_of(local)
    async with Worker(local, card(worker_type=kind), "a.first.c") as helper:
        await until(lambda: words in caplog.text)
        assert refusal(models, "m") is ModelNotFound
        async with Worker(local, card()) as worker:
            await until(models.served)
            await until(lambda: len(models.instances()) == 2)
            assert (
                models.get("m").router.instances.ids() == [worker.runtime.instance_id] != [helper.runtime.instance_id]
            )
    await models.close()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([CARDS, INSTANCES]),
    st.sampled_from(["a/b/c/1", "a/b/c", "a/b/c/zz", "x", "a/b/c/1/2"]),
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from([b'{"name":"m","model_type":1}', b'{"name":"m","model_type":99999}', b"[" * 5000, b"{}"]),
    ),
)
def test_no_record_whatever_it_holds_stops_the_watch(prefix: str, place: str, value: bytes) -> None:
    async def run() -> None:
        local = Local()
        models = await models_of(local)
        stranger = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
        await stranger.start()
        await stranger.discovery.put(prefix + place, value)
        async with Worker(local, card("good")):
            await until(lambda: "good" in [model.name for model in models.served()])
        await stranger.close()
        await models.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "sizes",
    [
        '"kv_cache_block_size":0',
        '"runtime_config":{"max_num_batched_tokens":-1}',
        '"runtime_config":{"total_kv_blocks":-16}',
        '"runtime_config":{"data_parallel_size":1000000000000}',
    ],
)
async def test_a_card_whose_sizes_make_no_sense_is_left_out_and_named(
    sizes: str, caplog: pytest.LogCaptureFixture
) -> None:
    local = Local()
    stranger = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await stranger.start()
    value = f'{{"name":"odd","model_type":1,"model_input":"text",{sizes}}}'
    await stranger.discovery.put(f"{CARDS}a/b/c/1", value.encode())
    models = await models_of(local, "kv")
    async with Worker(local, card("good")):
        await until(models.served)
        assert [model.name for model in models.served()] == ["good"]
    assert sizes.split('"')[-2] in caplog.text
    await stranger.close()
    await models.close()


async def test_a_thousand_instances_are_all_listed(tmp_path: Path) -> None:
    config = RuntimeConfig.from_env({"DYN_FILE_KV": str(tmp_path / "kv")})
    workers = [DistributedRuntime(config=config) for _ in range(1000)]
    serving = []
    for worker in workers:
        endpoint = worker.endpoint("a.b.c")
        await worker.start()
        await worker.discovery.put(
            f"{CARDS}{endpoint.id.path}/{worker.instance_id:x}", b'{"name":"m","model_type":1,"model_input":"text"}'
        )
        serving.append(asyncio.create_task(endpoint.serve_endpoint(say)))
    runtime = DistributedRuntime(config=config)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}))
    await models.start()
    await until(lambda: models.served() and len(models.get("m").router.instances) == 1000)
    await models.close()
    await runtime.close()
    for worker in workers:
        worker.shutdown()
    await asyncio.gather(*serving)
    for worker in workers:
        await worker.close()


@pytest.mark.parametrize(("own", "used"), [(None, 3), (0, 0), (7, 7)])
async def test_a_migration_limit_of_the_frontend_replaces_that_of_the_card(own: int | None, used: int) -> None:
    local = Local()
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)
    await runtime.start()
    models = Models(runtime, RoutingConfig(), HubConfig.from_env({}), migration_limit=own)
    await models.start()
    async with Worker(local, card(migration_limit=3)):
        assert (await models.wait_for("m")).card.migration_limit == used
    await models.close()
    await runtime.close()
