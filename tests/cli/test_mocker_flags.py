from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynamo.cli.mocker.command import MockerSettings, default_endpoint, engine_args, parser, stagger
from dynamo.engines.mocker import MockerArgs
from dynamo.protocols.errors import InvalidArgument


def test_few_workers_start_at_once_and_many_one_after_the_other() -> None:
    assert stagger(3, -1) == [0.0, 0.0, 0.0]
    assert stagger(3, 0.5) == [0.0, 0.5, 0.5]
    many = stagger(100, -1)
    assert (many[0], many[1], many[32], many[33]) == (0.0, 0.1, 2.1, 0.1)
    assert stagger(200, -1)[1] == 0.2


@pytest.mark.parametrize("delay", [-2.0, -0.5, float("inf"), float("nan")])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="--stagger-delay"):
        stagger(2, delay)


def test_flags_become_engine_arguments() -> None:
    words = ["--model-path", "x", "--data-parallel-size", "2", "--no-enable-prefix-caching", "--reasoning"]
    args = engine_args(
        parsed(*words, '{"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 0.5}')
    )
    assert (args.dp_size, args.enable_prefix_caching) == (2, False)
    assert args.reasoning
    assert args.reasoning.thinking_ratio == 0.5


def test_flags_fill_what_the_file_of_engine_arguments_leaves_out(tmp_path: Path) -> None:
    args = engine_args(with_file(tmp_path, '{"num_gpu_blocks": 5}', "--speedup-ratio", "10"))
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
    engine_args(with_file(tmp_path, file, flag, value))
    other = "decode" if flag == "--disaggregation-mode" else "7"
    with pytest.raises(InvalidArgument, match=f"{flag} says {other}.* the file of engine arguments says {value}"):
        engine_args(with_file(tmp_path, file, flag, other))


@pytest.mark.parametrize(
    ("mode", "environ", "place"),
    [
        ("agg", {}, "dyn://dynamo.backend.generate"),
        ("decode", {"DYN_NAMESPACE": "ours"}, "dyn://ours.decode.generate"),
        ("prefill", {"DYN_NAMESPACE": "ours"}, "dyn://ours.prefill.generate"),
        ("agg", {"DYN_COMPONENT": "worker"}, "dyn://dynamo.worker.generate"),
    ],
)
def test_the_default_endpoint_follows_the_namespace_and_the_kind_of_work(
    mode: str, environ: dict[str, str], place: str
) -> None:
    asked = MockerSettings.from_env(environ, model_path="x")
    args = MockerArgs.from_json({"disaggregation_mode": mode})
    assert str(default_endpoint(args, asked.namespace, asked.component)) == place


def with_file(folder: Path, text: str, *flags: str) -> dict[str, Any]:
    (folder / "args.json").write_text(text)
    return parsed("--model-path", "x", "--extra-engine-args", str(folder / "args.json"), *flags)


def parsed(*words: str) -> dict[str, Any]:
    return vars(parser().parse_args(words))
