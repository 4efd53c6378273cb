"""Putting a model on the network, in every form the guides have shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo.llm import (
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_llm,
    register_model,
    unregister_llm,
)
from dynamo.model import ModelError
from dynamo.protocols.card import ModelCard
from dynamo.runtime import DistributedRuntime, Endpoint, Local, RuntimeConfig
from dynamo.runtime.names import CARDS
from support import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.byte_level_model(tmp_path_factory.mktemp("models") / "toy-model")


def runtime(local: Local | None = None) -> DistributedRuntime:
    return DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)


async def cards(endpoint: Endpoint) -> list[ModelCard]:
    found = await endpoint.runtime.discovery.get_prefix(CARDS)
    return [msgspec.json.decode(value, type=ModelCard) for value in found.values()]


BOTH = ModelType.Chat | ModelType.Completions


@pytest.mark.parametrize(
    ("arguments", "options", "name", "model_input", "model_type"),
    [
        ((ModelType.Backend, "E", "P"), {}, "toy-model", ModelInput.Tokens, BOTH),
        ((ModelType.Backend, "E", "P", "named"), {}, "named", ModelInput.Tokens, BOTH),
        ((ModelType.Chat, "E", "P"), {}, "toy-model", ModelInput.Text, ModelType.Chat),
        ((ModelType.Completion, "E", "any/id"), {}, "any/id", ModelInput.Text, ModelType.Completions),
        ((ModelInput.Tokens, BOTH, "E", "P"), {"model_name": "n"}, "n", ModelInput.Tokens, BOTH),
        (
            (ModelInput.Tokens, ModelType.Chat, "E", "P", "n"),
            {"worker_type": WorkerType.Aggregated},
            "n",
            ModelInput.Tokens,
            ModelType.Chat,
        ),
        (
            (),
            {"model_input": ModelInput.Text, "model_type": ModelType.Chat, "endpoint": "E", "model_path": "x"},
            "x",
            ModelInput.Text,
            ModelType.Chat,
        ),
    ],
)
async def test_every_published_form_registers_the_same_way(
    folder: Path, arguments: Any, options: Any, name: str, model_input: ModelInput, model_type: ModelType
) -> None:
    async with runtime() as one:
        endpoint = one.endpoint("a.b.c")
        stand_ins = {"E": endpoint, "P": str(folder)}

        def swap(value: Any) -> Any:
            return stand_ins.get(value, value) if isinstance(value, str) else value

        await register_llm(*map(swap, arguments), **{key: swap(value) for key, value in options.items()})
        (card,) = await cards(endpoint)
        assert (card.name, card.model_input, card.type) == (name, model_input, model_type)
        await unregister_llm(endpoint)
        assert await cards(endpoint) == []


async def test_all_options_reach_the_card(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    async with runtime() as one:
        endpoint = one.endpoint("a.b.c")
        await register_model(
            ModelInput.Tokens,
            ModelType.Chat,
            endpoint,
            str(folder),
            model_name="n",
            context_length=128,
            kv_cache_block_size=32,
            user_data={"lora": "x"},
            migration_limit=3,
            custom_template_path=str(template),
            runtime_config=ModelRuntimeConfig(total_kv_blocks=99),
        )
        (card,) = await cards(endpoint)
        assert (card.context_length, card.kv_cache_block_size, card.migration_limit) == (128, 32, 3)
        assert card.user_data == {"lora": "x"}
        assert card.runtime_config.total_kv_blocks == 99
        assert card.files["custom_template"].path == str(template)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_blocksize": 1}, "kv_cache_blocksize"),
        ({"model_type": ModelType.Chat}, "model_type"),
    ],
)
async def test_unknown_and_repeated_options_are_refused_by_name(folder: Path, options: Any, message: str) -> None:
    async with runtime() as one:
        with pytest.raises(TypeError, match=message):
            await register_llm(ModelType.Backend, one.endpoint("a.b.c"), str(folder), **options)


@pytest.mark.parametrize("model_input", list(ModelInput))
async def test_a_migration_limit_reaches_the_card_and_is_not_negative(model_input: ModelInput, folder: Path) -> None:
    async with runtime() as one:
        endpoint = one.endpoint("a.b.c")
        with pytest.raises(ModelError, match="migration_limit"):
            await register_llm(model_input, ModelType.Chat, endpoint, str(folder), migration_limit=-5)
        await register_llm(model_input, ModelType.Chat, endpoint, str(folder), migration_limit=3)
        (card,) = await cards(endpoint)
        assert card.migration_limit == 3


@pytest.mark.parametrize("path", ["/no/such/folder", "empty"])
async def test_a_model_that_cannot_be_read_is_a_model_error(path: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with runtime() as one:
        with pytest.raises(ModelError):
            await register_llm(ModelType.Backend, one.endpoint("a.b.c"), str(tmp_path / path))


async def test_sizes_that_make_no_sense_are_refused_by_name(folder: Path) -> None:
    async with runtime() as one:
        odd = ModelRuntimeConfig(max_num_batched_tokens=-1)
        with pytest.raises(ModelError, match="max_num_batched_tokens"):
            await register_llm(ModelType.Backend, one.endpoint("a.b.c"), str(folder), runtime_config=odd)
        assert await cards(one.endpoint("a.b.c")) == []


async def test_a_second_worker_with_another_card_is_refused_and_told_why(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = Local()
    async with runtime(local) as first, runtime(local) as second, runtime(local) as third:
        await register_llm(ModelType.Backend, first.endpoint("a.b.c"), str(folder), kv_cache_block_size=16)
        with pytest.raises(ModelError, match="kv_cache_block_size 32 here, 16 there"):
            await register_llm(ModelType.Backend, second.endpoint("a.b.c"), str(folder), kv_cache_block_size=32)
        assert "kv_cache_block_size" in caplog.text
        await register_llm(ModelType.Backend, third.endpoint("a.b.c"), str(folder), kv_cache_block_size=16)
        assert len(await cards(third.endpoint("a.b.c"))) == 2


@pytest.mark.parametrize(("given", "expected"), [({}, 77), ({"context_length": 55}, 55)])
async def test_the_engine_s_context_length_is_that_of_the_model_unless_another_is_given(
    folder: Path, given: dict[str, int], expected: int
) -> None:
    reported = ModelRuntimeConfig()
    reported.context_length = 77
    async with runtime() as own:
        endpoint = own.endpoint("ns.backend.generate")
        for path, model_input in ((str(folder), ModelInput.Tokens), ("any", ModelInput.Text)):
            await register_model(model_input, BOTH, endpoint, path, runtime_config=reported, **given)
            assert [card.context_length for card in await cards(endpoint)] == [expected]


async def test_a_tensor_model_says_what_it_takes() -> None:
    config = {"name": "echo", "inputs": [], "outputs": []}
    async with runtime() as own:
        endpoint = own.endpoint("ns.tensor.generate")
        await register_model(
            ModelInput.Tensor, ModelType.TensorBased, endpoint, "echo", tensor_model_config=config
        )  # fmt: skip
        (card,) = await cards(endpoint)
    assert (card.model_input, card.tensor_model_config) == (ModelInput.Tensor, config)
