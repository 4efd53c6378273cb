"""The real library on a tiny model with random weights."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import dynamo.engines.base
from dynamo.engines.base import EngineError
from dynamo.engines.mistralrs import MistralRsEngine
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import LocalModel, Tokenizer
from dynamo.protocols.engine import (
    OutputOptions,
    PreprocessedRequest,
    Routing,
    SamplingOptions,
    StopConditions,
)
from dynamo.protocols.errors import Cancelled, EngineShutdown, InvalidArgument
from dynamo.router.delivery.continuation import continuation
from support.models import byte_level_json, sentencepiece_json
from support.sinks import Kept
from support.tiny_llama import (
    CONTEXT,
    tiny_llama,
    tiny_llama_gguf,
    tiny_llama_gguf_without_tokenizer,
    tiny_llama_sentencepiece,
    tiny_llama_sentencepiece_gguf,
    vocabulary_size,
)
from support.waiting import PATIENCE

TOKENIZER = Tokenizer(byte_level_json())
END = TOKENIZER.id_of("<|im_end|>") or 0
PROMPT = "<|im_start|>user\nhello world 🎉<|im_end|>\n<|im_start|>assistant\n"
assert END is not None
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def local(path: Path) -> LocalModel:
    return LocalModel(source=str(path), path=path)


async def started(path: Path, **spec: Any) -> MistralRsEngine:
    engine = MistralRsEngine(EngineSpec(model=local(path), **spec))
    await engine.start()
    return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("mistralrs") / "tiny-random")


@pytest_asyncio.fixture(loop_scope="function")
async def engine(folder: Path) -> AsyncIterator[MistralRsEngine]:
    engine = await started(folder, extra_engine_args={"max_seqs": 4})
    yield engine
    await engine.close()


def asking(prompt: str | list[int] = PROMPT, *, max_tokens: int | None = 16, **more: Any) -> PreprocessedRequest:
    """A greedy request; keyword arguments go to whichever part of it has them."""
    stops: dict[str, Any] = {"stop_token_ids_hidden": [END], "max_tokens": max_tokens}
    sampling: dict[str, Any] = {"temperature": 0.0}
    for name, value in more.items():
        if name in StopConditions.__struct_fields__:
            stops[name] = value
        elif name in SamplingOptions.__struct_fields__:
            sampling[name] = value
    return PreprocessedRequest(
        token_ids=TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt,
        stop_conditions=StopConditions(**stops),
        sampling_options=SamplingOptions(**sampling),
        output_options=OutputOptions(**{k: v for k, v in more.items() if k in OutputOptions.__struct_fields__}),
        eos_token_ids=[] if stops.get("ignore_eos") else [END],
        routing=more.get("routing"),
        kv_transfer_params=more.get("kv_transfer_params"),
    )


async def run(engine: MistralRsEngine, request: PreprocessedRequest) -> Kept:
    kept = Kept()
    engine.generate(request, kept)
    await kept.done
    return kept


async def test_the_answer_is_exactly_max_tokens_long_and_says_so(engine: MistralRsEngine) -> None:
    kept = await run(engine, asking(max_tokens=12, ignore_eos=True))
    assert len(kept.ids) == 12
    assert kept.last.finish_reason == "length"
    usage = kept.last.completion_usage
    assert usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(TOKENIZER.encode(PROMPT)), 12)


async def test_greedy_answers_are_the_same_alone_and_in_a_crowd(engine: MistralRsEngine) -> None:
    prompts = [f"hello {number} world" for number in range(12)]
    alone = [(await run(engine, asking(prompt, max_tokens=40))).ids for prompt in prompts]
    crowd = await asyncio.gather(*(run(engine, asking(prompt, max_tokens=40)) for prompt in prompts * 2))
    assert [kept.ids for kept in crowd] == alone * 2
    assert len({tuple(ids) for ids in alone}) > 6


@pytest.mark.parametrize(("quantisation", "at_once"), [("Q8_0", 1), ("q4_0", 1), ("8", 1), ("HQQ8", 12)])
async def test_weights_that_mistralrs_cannot_batch_are_used_for_one_answer_at_a_time(
    folder: Path, quantisation: str, at_once: int
) -> None:
    engine = MistralRsEngine(
        EngineSpec(model=local(folder), extra_engine_args={"in_situ_quant": quantisation, "max_seqs": 12})
    )
    info = await engine.start()
    try:
        assert info.max_num_seqs == at_once
        prompts = [f"hello {number} world" for number in range(4)] * 3
        crowd = await asyncio.gather(*(run(engine, asking(prompt, max_tokens=4)) for prompt in prompts))
        assert [kept.error for kept in crowd] == [None] * 12
        guided = await asyncio.gather(
            *(run(engine, asking(prompt, guided_decoding={"choice": ["a", "b"]})) for prompt in prompts)
        )
        assert {TOKENIZER.decode(kept.ids) for kept in guided} <= {"a", "b"}
    finally:
        await engine.close()


async def test_gguf_gives_the_tokens_of_the_folder(engine: MistralRsEngine, tmp_path: Path) -> None:
    gguf = await started(tiny_llama_gguf(tmp_path / "tiny.gguf"))
    try:
        for prompt in (PROMPT, "the quick brown", "你好"):
            request = asking(prompt, max_tokens=32)
            assert (await run(gguf, request)).ids == (await run(engine, request)).ids
        assert (await run(gguf, asking(logit_bias={str(END): 100.0}))).ids == [END]
        kept = await run(gguf, asking("a", guided_decoding={"choice": ["a", "b"]}))
        assert TOKENIZER.decode(kept.ids) in ("a", "b")
        assert kept.last.finish_reason == "stop"
    finally:
        await gguf.close()


@pytest.mark.parametrize("make", [tiny_llama_sentencepiece, tiny_llama_sentencepiece_gguf])
async def test_sentencepiece_vocabularies_keep_their_ids(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    tokenizer = Tokenizer(sentencepiece_json())
    engine = await started(make(tmp_path / "model.gguf"))
    try:
        ids = [1, *tokenizer.encode("hello world"), 2, 13, 200]
        for wanted in (tokenizer.encode("river")[-1], 0, 1, 3 + 0x0A, 3 + 0xE4):
            request = asking(ids, max_tokens=3, logit_bias={str(wanted): 100.0}, ignore_eos=True)
            kept = await run(engine, request)
            assert kept.ids == [wanted] * 3
        form = {"regex": "(hello|wörld 你\n){3}"}
        kept = await run(engine, asking(ids, max_tokens=60, guided_decoding=form, stop_token_ids_hidden=[2]))
        assert kept.last.finish_reason == "stop"
        assert re.fullmatch(form["regex"], b"".join(map(tokenizer.token_bytes, kept.ids[:-1])).decode())
    finally:
        await engine.close()


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 17])
async def test_an_answer_is_continued_from_any_token(engine: MistralRsEngine, cut: int) -> None:
    """As after a migration, also where the first worker left in the middle of a character."""
    prompt = TOKENIZER.encode(PROMPT)
    whole = (await run(engine, asking(prompt, max_tokens=30, ignore_eos=True))).ids
    rest = await run(engine, asking(prompt + whole[:cut], max_tokens=30 - cut, ignore_eos=True))
    assert whole[:cut] + rest.ids == whole


async def test_whatever_token_is_sampled_comes_back_as_itself(engine: MistralRsEngine) -> None:
    every = [id for id in range(vocabulary_size()) if id != END]
    kept = await asyncio.gather(
        *(run(engine, asking(max_tokens=2, logit_bias={str(id): 100.0}, stop_token_ids_hidden=[])) for id in every)
    )
    assert [one.ids for one in kept] == [[id] * 2 for id in every]


async def test_any_ids_can_be_a_prompt(engine: MistralRsEngine, caplog: pytest.LogCaptureFixture) -> None:
    every = list(range(vocabulary_size()))
    for ids in (every, every[::-1], [every[-1]] * 5, TOKENIZER.encode("h") + TOKENIZER.encode("ello")):
        kept = await run(engine, asking(ids, max_tokens=2))
        assert kept.error is None
    assert "prompt" not in caplog.text
    kept = await run(engine, asking([5, vocabulary_size()]))
    assert isinstance(kept.error, InvalidArgument)
    assert str(vocabulary_size()) in kept.error.message


async def test_text_of_split_characters_is_whole(engine: MistralRsEngine) -> None:
    kept = await run(engine, asking(max_tokens=60, guided_decoding={"regex": "(🎉|你|é|ß|ᚠ){8}"}))
    decoder = TOKENIZER.decoder()
    text = "".join(decoder.push([id]) for id in kept.ids) + decoder.flush()
    assert re.fullmatch("(🎉|你|é|ß|ᚠ){8}", text)
    assert len(kept.ids) > len(text)


async def test_the_model_ends_its_answer(engine: MistralRsEngine) -> None:
    kept = await run(engine, asking(logit_bias={str(END): 100.0}))
    assert kept.ids == [END]
    assert kept.last.finish_reason == "stop"
    assert kept.last.completion_usage
    assert kept.last.completion_usage.completion_tokens == 1


async def test_an_end_the_model_does_not_know_itself_ends_the_answer_too(engine: MistralRsEngine) -> None:
    other = TOKENIZER.id_of("<|endoftext|>")
    request = asking(stop_token_ids_hidden=[END, other], logit_bias={str(other): 100.0})
    kept = await run(engine, request)
    assert kept.ids == [other]
    assert (kept.last.finish_reason, kept.last.stop_reason) == ("stop", None)


async def test_a_clients_stop_id_ends_the_answer_and_is_named(engine: MistralRsEngine) -> None:
    free = (await run(engine, asking(max_tokens=8))).ids
    stop = free[3]
    kept = await run(engine, asking(max_tokens=8, stop_token_ids=[stop]))
    assert kept.ids == free[: free.index(stop) + 1]
    assert (kept.last.finish_reason, kept.last.stop_reason) == ("stop", stop)


async def test_with_ignore_eos_only_the_length_ends_the_answer(engine: MistralRsEngine) -> None:
    kept = await run(engine, asking(max_tokens=6, ignore_eos=True, logit_bias={str(END): 100.0}))
    assert len(kept.ids) == 6
    assert END not in kept.ids
    assert kept.last.finish_reason == "length"


async def test_a_clients_stop_id_ends_an_answer_with_ignore_eos_too(engine: MistralRsEngine) -> None:
    free = (await run(engine, asking(max_tokens=8, ignore_eos=True))).ids
    kept = await run(engine, asking(max_tokens=8, ignore_eos=True, stop_token_ids=[free[3]]))
    assert kept.ids == free[: free.index(free[3]) + 1]
    assert (kept.last.finish_reason, kept.last.stop_reason) == ("stop", free[3])


async def test_min_tokens_keeps_the_model_from_ending(engine: MistralRsEngine) -> None:
    kept = await run(engine, asking(max_tokens=9, min_tokens=4, logit_bias={str(END): 100.0}))
    assert len(kept.ids) == 5
    assert kept.ids[-1] == END
    assert END not in kept.ids[:-1]
    plain = await run(engine, asking(max_tokens=9))
    assert (await run(engine, asking(max_tokens=9, min_tokens=4))).ids == plain.ids


async def test_an_answer_ends_where_the_context_does(folder: Path) -> None:
    engine = await started(folder, context_length=40)
    try:
        kept = await run(engine, asking("a" * 30, max_tokens=None, ignore_eos=True))
        assert kept.last.finish_reason == "length"
        assert kept.last.completion_usage
        assert kept.last.completion_usage.total_tokens == 40
        kept = await run(engine, asking("a" * 40))
        assert isinstance(kept.error, InvalidArgument)
        assert "40" in kept.error.message
    finally:
        await engine.close()


async def test_sampling_options_reach_the_sampler(engine: MistralRsEngine) -> None:
    greedy = (await run(engine, asking(max_tokens=20))).ids
    options: Any
    for options in (
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 0.0, "top_k": -1, "top_p": 1.0},
    ):
        assert (await run(engine, asking(max_tokens=20, **options))).ids == greedy
    drawn = {tuple((await run(engine, asking(max_tokens=20, temperature=1.0))).ids) for _ in range(4)}
    assert len(drawn) > 1
    assert len(set(greedy)) < len(greedy)
    penalty: Any
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 2.0}):
        assert (await run(engine, asking(max_tokens=20, **penalty))).ids != greedy


async def test_a_seed_is_accepted_and_mentioned_once(engine: MistralRsEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert (await run(engine, asking(seed=7, max_tokens=2))).error is None
    assert caplog.text.count("seed") == 2  # twice in one line
    assert len([record for record in caplog.records if "seed" in record.message]) == 1


async def test_logprobs_come_with_each_token(engine: MistralRsEngine) -> None:
    kept = await run(engine, asking(max_tokens=5, logprobs=3, ignore_eos=True))
    for output in kept.items[:5]:
        assert len(output.token_ids) == len(output.log_probs) == 1
        tops = output.top_logprobs[0]
        assert len(tops) == 3
        assert (tops[0].token_id, tops[0].logprob) == (output.token_ids[0], output.log_probs[0])
        assert tops[0].logprob >= tops[1].logprob >= tops[2].logprob
    assert len(kept.ids) == 5


@pytest.mark.parametrize(
    ("form", "matches"),
    [
        ({"regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"choice": ["Paris", "Rome (Italy)?", "a/b\nc d"]}, r"Paris|Rome \(Italy\)\?|a/b\nc d"),
        ({"choice": ["café ☕ 你好\n- привет мир"]}, "café ☕ 你好\n- привет мир"),
        ({"grammar": 'start: "x" "y"+\n', "backend": "guidance"}, "xy+"),
    ],
)
async def test_the_form_of_an_answer_can_be_bound(engine: MistralRsEngine, form: dict[str, Any], matches: str) -> None:
    kept = await run(engine, asking(guided_decoding=form, max_tokens=40))
    text = TOKENIZER.decode(kept.ids)
    assert re.fullmatch(matches, text) or (kept.last.finish_reason == "length" and text.startswith("xy"))


async def test_an_answer_bound_to_a_schema_is_json(engine: MistralRsEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    kept = await run(engine, asking(guided_decoding={"json": schema}, max_tokens=60))
    assert kept.last.finish_reason == "stop"
    answer = json.loads(TOKENIZER.decode(kept.ids))
    assert answer.keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"guided_decoding": {"regex": "((("}}, "guided_decoding"),
        ({"guided_decoding": {"regex": "((("}}, "unclosed group"),
        ({"guided_decoding": {"json": {"type": "nonsense"}}}, "nonsense"),
        ({"guided_decoding": {"json": "{"}}, "guided_decoding"),
        ({"guided_decoding": {"grammar": "start: nothing"}}, "guided_decoding"),
        ({"guided_decoding": {"structural_tag": {}}}, "structural_tag"),
        ({"guided_decoding": {"json": {}, "whitespace_pattern": " "}}, "guided_whitespace_pattern"),
        ({"guided_decoding": {"regex": "a"}, "min_tokens": 2}, "min_tokens"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 2}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"routing": Routing(lora_name="x")}, "LoRA"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": []}, "empty"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(
    engine: MistralRsEngine, options: dict[str, Any], named: str
) -> None:
    kept = await run(engine, asking(**options))
    assert isinstance(kept.error, InvalidArgument)
    assert named in kept.error.message
    assert "\n" not in kept.error.message
    assert (await run(engine, asking(max_tokens=1))).error is None


async def test_a_cancelled_answer_gives_its_place_to_the_next(engine: MistralRsEngine) -> None:
    running = []
    kept = []
    for _ in range(4):
        begun = asyncio.Event()
        sink = Kept(on_tokens=begun.set)
        running.append(engine.generate(asking(max_tokens=400, ignore_eos=True), sink))
        kept.append(sink)
        await begun.wait()
    waiting = Kept()
    queued = engine.generate(asking(max_tokens=400, ignore_eos=True), waiting)
    queued.abort()
    await waiting.done
    assert isinstance(waiting.error, Cancelled)
    assert waiting.ids == []
    assert not engine.quiet()
    for each in running:
        each.abort()
        each.abort()
    for sink in kept:
        await sink.done
        assert isinstance(sink.error, Cancelled)
        assert len(sink.ids) < 400
    async with asyncio.timeout(PATIENCE):
        while not engine.quiet():
            await asyncio.sleep(0)
    assert (await run(engine, asking(max_tokens=3))).error is None


async def test_stopping_fails_what_runs_and_what_waits_so_that_it_can_go_elsewhere(folder: Path) -> None:
    engine = await started(folder, extra_engine_args={"max_seqs": 1})
    begun = asyncio.Event()
    kept = [Kept(on_tokens=begun.set), Kept(), Kept()]
    for sink in kept:
        engine.generate(asking(max_tokens=450, ignore_eos=True), sink)
    await begun.wait()
    await engine.close()
    await engine.close()
    for sink in kept:
        assert isinstance(sink.error, EngineShutdown)
    late = await run(engine, asking())
    assert isinstance(late.error, EngineShutdown)


async def test_the_engine_says_what_it_can_do(folder: Path) -> None:
    engine = make_engine("mistralrs", EngineSpec(model=local(folder), extra_engine_args={"max_seqs": 3}))
    info = await engine.start()
    await engine.close()
    assert (info.context_length, info.max_num_seqs) == (CONTEXT, 3)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"num_nodes": 2}, "--num-nodes"),
        ({"base_gpu_id": 1}, "--base-gpu-id"),
        ({"arguments": ["--x"]}, "--extra-engine-args"),
        ({"extra_engine_args": {"max_sequences": 3}}, "max_sequences"),
        ({"extra_engine_args": {"max_seqs": 0}}, "max_seqs"),
        ({"model": None}, "needs a model"),
    ],
)
def test_a_spec_it_cannot_follow_is_refused(folder: Path, spec: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        make_engine("mistralrs", EngineSpec(**{"model": local(folder)} | spec))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{}"),
        ("config.json", b"["),
        ("config.json", b"[]"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0nonsense"),
        ("model.safetensors", None),
        ("tokenizer.json", b"{}"),
    ],
)
async def test_a_broken_model_is_one_clear_line(tmp_path: Path, file: str, content: bytes | None) -> None:
    folder = tiny_llama(tmp_path / "broken")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(EngineError) as raised:
        await started(folder)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_the_tokenizer_may_come_from_another_place(engine: MistralRsEngine, folder: Path, tmp_path: Path) -> None:
    gguf = await started(tiny_llama_gguf(tmp_path / "tiny.gguf"), model_config=local(folder))
    try:
        assert (await run(gguf, asking())).ids == (await run(engine, asking())).ids
    finally:
        await gguf.close()


async def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tiny_llama_sentencepiece(tmp_path / "other")
    with pytest.raises(EngineError, match="incompatible"):
        await started(tiny_llama_gguf(tmp_path / "tiny.gguf"), model_config=local(other))


async def test_a_configuration_written_by_transformers_5_is_read(engine: MistralRsEngine, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "new")
    config = json.loads((folder / "config.json").read_text())
    for rope in (
        {"rope_theta": config["rope_theta"], "rope_type": "default"},
        {"rope_theta": 1e4, "rope_type": "llama3", "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": CONTEXT},
    ):  # fmt: skip
        new = {key: value for key, value in config.items() if key not in ("rope_theta", "torch_dtype")}
        (folder / "config.json").write_text(json.dumps(new | {"rope_parameters": rope, "dtype": "float32"}))
        written = await started(folder)
        try:
            assert (await run(written, asking())).ids == (await run(engine, asking())).ids
        finally:
            await written.close()


async def test_a_gguf_file_without_tokenizer_is_left_to_llama_cpp(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"only GGUF files with a tokenizer.*out=llamacpp"):
        await started(tiny_llama_gguf_without_tokenizer(tmp_path / "m.gguf"), model_config=local(folder))


async def test_a_gguf_file_that_llama_cpp_tokenizes_is_answered(tmp_path: Path) -> None:
    plain = await started(tiny_llama_gguf(tmp_path / "plain.gguf"))
    other = await started(tiny_llama_gguf(tmp_path / "m.gguf", **{"tokenizer.ggml.pre": "tekken"}))
    try:
        assert (await run(other, asking())).ids == (await run(plain, asking())).ids
    finally:
        await plain.close()
        await other.close()


async def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    with pytest.raises(EngineError, match=f"{CONTEXT + 1}.*{CONTEXT}"):
        await started(folder, context_length=CONTEXT + 1)


def test_nothing_of_its_own_goes_to_stdout(folder: Path) -> None:
    """A pipe's answer goes there, and the library's log would."""
    script = """
import asyncio, pathlib, sys
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import LocalModel
async def main():
    path = pathlib.Path(sys.argv[1])
    engine = make_engine("mistralrs", EngineSpec(model=LocalModel(source=str(path), path=path)))
    await engine.start()
    await engine.close()
    print("done")
asyncio.run(main())
"""
    source = str(Path(dynamo.engines.base.__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "done\n"


async def test_an_architecture_it_does_not_know_is_refused(folder: Path) -> None:
    with pytest.raises(EngineError, match="Llama"):
        await started(folder, extra_engine_args={"arch": "nonsense"})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_guided_answer_is_closed_before_its_limit(engine: MistralRsEngine, temperature: float) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    for limit in range(10, 40, 3):
        asked = asking(max_tokens=limit, temperature=temperature, guided_decoding={"json": schema})
        kept = await run(engine, asked)
        assert kept.last.completion_usage
        assert len(kept.ids) <= kept.last.completion_usage.completion_tokens <= limit
        assert kept.last.finish_reason == "stop"
        assert len(json.loads(TOKENIZER.decode([id for id in kept.ids if id != END]))) >= 2


@pytest.mark.parametrize("guidance", [{"json": PERSON}, {"choice": ["hello world", "hello"]}])
async def test_a_guided_answer_is_continued_from_any_token(engine: MistralRsEngine, guidance: dict[str, Any]) -> None:
    request = asking(max_tokens=40, guided_decoding=guidance)
    whole = await run(engine, request)
    for taken in (*range(1, len(whole.ids) - 1, 7), len(whole.ids) - 1):
        rest = await run(engine, continuation(request, whole.ids[:taken]))
        assert (taken, whole.ids[:taken] + rest.ids, rest.last.finish_reason) == (taken, whole.ids, "stop")
        assert rest.last.completion_usage
        assert whole.last.completion_usage
        assert rest.last.completion_usage.completion_tokens + taken == whole.last.completion_usage.completion_tokens


async def test_a_sampled_guided_answer_is_continued_by_its_grammar(engine: MistralRsEngine) -> None:
    request = asking(max_tokens=40, temperature=1.5, guided_decoding={"json": PERSON})
    for taken in (1, 6, 11):
        said = (await run(engine, request)).ids[:taken]
        rest = await run(engine, continuation(request, said))
        assert set(json.loads(TOKENIZER.decode([id for id in said + rest.ids if id != END]))) == {"name", "age"}


async def test_a_guided_answer_that_lacks_nothing_but_its_end_is_ended(engine: MistralRsEngine) -> None:
    request = asking(max_tokens=40, guided_decoding={"choice": ["hello"]})
    said = [id for id in (await run(engine, request)).ids if id != END]
    rest = await run(engine, continuation(request, said))
    assert rest.error is None
    assert ([id for id in rest.ids if id != END], rest.last.finish_reason) == ([], "stop")
