from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo.engines.base import EngineError, RankLoad
from dynamo.engines.mocker import MockerEngine
from dynamo.engines.mocker.tokens import words_of
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import HubConfig, LocalModel, build_card, open_card
from dynamo.protocols.card import ModelType
from dynamo.protocols.engine import PreprocessedRequest, StopConditions
from support import models
from support.sinks import Kept
from support.toys import toy_folder
from support.waiting import PATIENCE


@pytest.fixture
def model(tmp_path: Path) -> LocalModel:
    folder = models.byte_level_model(tmp_path / "toy")
    return LocalModel(source=str(folder), path=folder)


async def test_out_mocker_follows_flags_and_file_and_answers_in_the_models_words(model: LocalModel) -> None:
    spec = EngineSpec(
        model=model,
        kv_cache_block_size=8,
        context_length=64,
        extra_engine_args={"block_size": 8, "speedup_ratio": 0, "num_gpu_blocks_override": 32, "dp_size": 2},
    )
    engine = make_engine("mocker", spec)
    info = await engine.start()
    assert (info.kv_cache_block_size, info.context_length, info.total_kv_blocks) == (8, 64, 32)
    assert info.data_parallel_size == 2
    kept = Kept()
    engine.generate(PreprocessedRequest(token_ids=[5, 6, 7], stop_conditions=StopConditions(max_tokens=20)), kept)
    await kept.done
    assert len(kept.ids) == 20
    assert all(3 <= token < 600 for token in kept.ids)
    await engine.close()


async def test_the_context_is_the_models_own_unless_less_is_asked_for(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "toy")
    spec = EngineSpec(model=LocalModel(source=str(folder), path=folder))
    assert (await make_engine("mocker", spec).start()).context_length == 2048


@pytest.mark.parametrize("make", [models.byte_level_model, models.sentencepiece_model])
def test_every_word_of_an_answer_is_text_by_itself(make: Callable[[Path], Path], tmp_path: Path) -> None:
    hub = HubConfig(cache=tmp_path, offline=True)
    folder = make(tmp_path / "toy")
    card = build_card(LocalModel(source=str(folder), path=folder), name="toy", model_type=ModelType.Backend)
    loaded = open_card(card, hub)
    words = words_of(loaded).words
    assert words
    assert all(loaded.tokenizer.decoder().push([word]) for word in words)
    assert {word for word in words if "\ufffd" in loaded.tokenizer.decode([word])} == set()
    assert len(words) < loaded.tokenizer.vocab_size - len(loaded.tokenizer.special_ids)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_cache_block_size": 16, "extra_engine_args": {"block_size": 32}}, "--kv-cache-block-size says 16"),
        ({"context_length": 100, "extra_engine_args": {"max_model_len": 200}}, "--context-length says 100"),
        ({"extra_engine_args": {"blok_size": 32}}, "blok_size"),
        ({"extra_engine_args": {"block_size": "big"}}, "block_size"),
        ({"extra_engine_args": {"speedup_ratio": -1}}, "speedup_ratio"),
    ],
)
def test_wrong_arguments_are_named_and_refused(model: LocalModel, options: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        make_engine("mocker", EngineSpec(model=model, **options))


def test_a_mocker_without_a_model_says_what_is_missing() -> None:
    with pytest.raises(EngineError, match="tokenizer"):
        make_engine("mocker", EngineSpec())


async def test_the_load_told_last_is_that_of_an_engine_at_rest(model: LocalModel) -> None:
    engine = make_engine("mocker", EngineSpec(model=model, extra_engine_args={"speedup_ratio": 0}))
    assert isinstance(engine, MockerEngine)
    await engine.start()
    told: list[tuple[int | None, ...]] = []
    more = asyncio.Event()

    def listener(load: RankLoad) -> None:
        told.append((load.active_decode_blocks, load.active_prefill_tokens, load.kv_used_blocks))
        more.set()

    engine.on_load(listener)
    kept = Kept()
    engine.generate(PreprocessedRequest(token_ids=[1] * 200, stop_conditions=StopConditions(max_tokens=300)), kept)
    await kept.done
    async with asyncio.timeout(PATIENCE):
        while not told or any(told[-1]):
            more.clear()
            await more.wait()
    await engine.close()
