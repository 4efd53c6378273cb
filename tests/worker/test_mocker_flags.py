"""The command `python -m dynamo.mocker`; nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo.engines.mocker import MockerArgs
from dynamo.engines.mocker.engine import MockerEngine
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import LocalModel, bundled
from dynamo.protocols.card import WorkerType
from dynamo.protocols.errors import InvalidArgument
from dynamo.settings import given
from dynamo.worker.config import engine_spec
from dynamo.worker.main import Place, parse
from dynamo.worker.several import SeveralSettings


def several(*words: str, **environ: str) -> tuple[SeveralSettings, list[str]]:
    flags, arguments = parse("python -m dynamo.mocker", words, MockerArgs)
    return SeveralSettings.from_env(environ, **given(flags, SeveralSettings)), arguments


def engine_args(*words: str) -> MockerArgs:
    settings, arguments = several("--model-path", "x", *words)
    return MockerArgs.from_spec(engine_spec(settings, arguments=arguments))


def stagger(workers: int, delay: float) -> list[float]:
    return SeveralSettings(num_workers=workers, stagger_delay=delay).pauses()


def test_few_workers_start_at_once_and_many_one_after_the_other() -> None:
    assert stagger(3, -1) == [0.0, 0.0, 0.0]
    assert stagger(3, 0.5) == [0.0, 0.5, 0.5]
    many = stagger(100, -1)
    assert (many[0], many[1], many[32], many[33]) == (0.0, 0.1, 2.1, 0.1)
    assert stagger(200, -1)[1] == 0.2


@pytest.mark.parametrize("delay", [-2.0, -0.5])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="--stagger-delay"):
        stagger(2, delay)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["--bootstrap-ports", "1,2"], WorkerType.Aggregated, "are for prefill workers"),
        (["--bootstrap-ports", "1,2"], WorkerType.Prefill, "2 ports for 1 workers"),
        (["--bootstrap-ports", "1,no"], WorkerType.Prefill, "ports from 1 to 65535"),
    ],
)
def test_each_prefill_worker_has_a_port_of_its_own(words: list[str], kind: WorkerType, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        several(*words)[0].ports(kind)


def test_ports_are_a_list_or_several_flags() -> None:
    for words in (["--bootstrap-ports", "7,8"], ["--bootstrap-ports", "7", "--bootstrap-ports", "8"]):
        assert several("--num-workers", "2", *words)[0].ports(WorkerType.Prefill) == [7, 8]


def test_flags_become_engine_arguments() -> None:
    words = ["--data-parallel-size", "2", "--no-enable-prefix-caching", "--reasoning"]
    args = engine_args(*words, '{"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 0.5}')
    assert (args.dp_size, args.enable_prefix_caching) == (2, False)
    assert args.reasoning
    assert args.reasoning.thinking_ratio == 0.5


@pytest.mark.parametrize(
    ("words", "caching", "ratio"),
    [
        (["--no-enable-prefix-caching", "--speedup-ratio", "2"], False, 2.0),
        (["--enable-prefix-caching", "--speedup-ratio=2"], True, 2.0),
        (["--enable-prefix-caching", "false"], False, 1.0),
    ],
)
def test_an_engine_reads_its_own_flags_wherever_they_were_given(words: list[str], caching: bool, ratio: float) -> None:
    engine = make_engine("mocker", EngineSpec(model=LocalModel(source="tiny", path=bundled()), arguments=words))
    assert isinstance(engine, MockerEngine)
    assert (engine.args.enable_prefix_caching, engine.args.speedup_ratio) == (caching, ratio)


def test_flags_fill_what_the_file_of_engine_arguments_leaves_out(tmp_path: Path) -> None:
    args = engine_args(*with_file(tmp_path, '{"num_gpu_blocks": 5}', "--speedup-ratio", "10"))
    assert (args.num_gpu_blocks, args.speedup_ratio) == (5, 10.0)


@pytest.mark.parametrize(
    ("file", "flag", "value"),
    [
        ('{"speedup_ratio": 10}', "--speedup-ratio", "10"),
        ('{"num_gpu_blocks": 5}', "--num-gpu-blocks-override", "5"),
        ('{"is_prefill": true}', "--disaggregation-mode", "prefill"),
    ],
)
def test_a_flag_that_repeats_the_file_is_fine_and_one_that_contradicts_it_is_refused(
    tmp_path: Path, file: str, flag: str, value: str
) -> None:
    engine_args(*with_file(tmp_path, file, flag, value))
    other = "decode" if flag == "--disaggregation-mode" else "7"
    with pytest.raises(InvalidArgument, match=f"{flag} says {other}.* the file of engine arguments says {value}"):
        engine_args(*with_file(tmp_path, file, flag, other))


def test_two_flags_that_contradict_each_other_are_both_named() -> None:
    with pytest.raises(InvalidArgument, match="--block-size says 32, --kv-cache-block-size says 16"):
        engine_args("--kv-cache-block-size", "16", "--block-size", "32")


@pytest.mark.parametrize(
    ("mode", "environ", "place"),
    [
        ("agg", {}, "dyn://dynamo.backend.generate"),
        ("decode", {"DYN_NAMESPACE": "ours"}, "dyn://ours.decode.generate"),
        ("prefill", {"DYN_NAMESPACE": "ours"}, "dyn://ours.prefill.generate"),
    ],
)
def test_the_default_endpoint_follows_the_namespace_and_the_kind_of_work(
    mode: str, environ: dict[str, str], place: str
) -> None:
    settings, _ = several(**environ)
    assert str(Place(settings, {})(engine_args("--disaggregation-mode", mode).worker_type)) == place


def with_file(folder: Path, text: str, *flags: str) -> list[str]:
    (folder / "args.json").write_text(text)
    return ["--extra-engine-args", str(folder / "args.json"), *flags]
