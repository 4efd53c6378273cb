"""GGUF files whose tokenizer is unusual, or somewhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo.engines.base import EngineError
from dynamo.model import LocalModel
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, StopConditions
from engines.llamacpp.conftest import Starting
from support.sinks import Kept
from support.tiny_llama import tiny_llama, tiny_llama_gguf, tiny_llama_gguf_without_tokenizer


def local(path: Path) -> LocalModel:
    return LocalModel(source=str(path), path=path)


async def answer(starting: Starting, path: Path, **spec: LocalModel) -> list[int]:
    engine = await starting(model=local(path), **spec)
    kept = Kept()
    request = PreprocessedRequest(
        token_ids=[5, 40, 41, 300],
        sampling_options=SamplingOptions(temperature=0.0),
        stop_conditions=StopConditions(max_tokens=12, ignore_eos=True),
    )
    engine.generate(request, kept)
    await kept.done
    return kept.ids


async def test_a_file_without_tokenizer_is_answered_with_that_of_model_config(
    starting: Starting, tmp_path: Path
) -> None:
    whole = await answer(starting, tiny_llama_gguf(tmp_path / "whole.gguf"))
    bare = tiny_llama_gguf_without_tokenizer(tmp_path / "bare.gguf")
    assert await answer(starting, bare, model_config=local(tiny_llama(tmp_path / "folder"))) == whole


async def test_a_file_without_tokenizer_alone_is_refused_with_the_remedy(starting: Starting, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"has no tokenizer: .*--model-config"):
        await starting(model=local(tiny_llama_gguf_without_tokenizer(tmp_path / "bare.gguf")))


async def test_a_file_that_llama_cpp_tokenizes_is_answered_like_any_other(starting: Starting, tmp_path: Path) -> None:
    plain = await answer(starting, tiny_llama_gguf(tmp_path / "plain.gguf"))
    for name in ("tekken", "gpt-4o", "deepseek-v3"):
        other = tiny_llama_gguf(tmp_path / "m.gguf", **{"tokenizer.ggml.pre": name})
        assert await answer(starting, other) == plain


async def test_a_model_of_an_unusual_size_is_described_without_a_question_mark(
    starting: Starting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        await answer(starting, tiny_llama_gguf(tmp_path / "m.gguf"))
    (line,) = (record.message for record in caplog.records if record.message.startswith("loaded "))
    assert ": llama " in line
    assert "?" not in line
