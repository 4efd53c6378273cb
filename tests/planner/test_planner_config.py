"""The planner's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.config import FrontendConfig
from dynamo.planner.__main__ import parser
from dynamo.planner.config import PlannerConfig, PlannerConfigError, parse_config, read_config
from dynamo.settings import given as given_flags
from dynamo.settings import options


def test_json_yaml_and_a_file_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "planner.yaml").write_text("environment: virtual\nttft_ms: 200\n")
    read = read_config(str(tmp_path / "planner.yaml"))
    assert read == read_config('{"environment": "virtual", "ttft_ms": 200}')
    assert (read.ttft_ms, read.itl_ms, read.max_gpu_budget, read.load_predictor) == (200.0, 50.0, 8, "arima")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{ttft: 200}", r"--config: unknown key 'ttft'; did you mean 'ttft_ms'\?"),
        ("{live_dashboard_port: 8080}", "live_dashboard_port: is not supported: there is no dashboard"),
        ("{ttft_ms: fast}", "--config: ttft_ms: Expected `float`, got `str`"),
        ("{ttft_ms: -1}", "--config: ttft_ms: Expected `float` > 0"),
        ("{itl_ms: 0}", "--config: itl_ms: Expected `float` > 0"),
        ("{ttft_ms: .nan}", "--config: ttft_ms: Expected `float`"),
        ("{ttft_ms: .inf}", "--config: ttft_ms: Expected `float` <= 1000000000"),
        ("{profile_results_dir: other}", "profile_results_dir: is not supported: capacity is measured on live"),
        ("{environment: global-planner}", "--config: environment: Invalid enum value 'global-planner'"),
        ("{load_predictor: prophet}", "--config: load_predictor: Invalid enum value 'prophet'"),
        ("{environment: local}", "deployment: environment local needs the file of `dynamo serve`"),
        (
            "{environment: virtual, min_endpoint: 9}",
            "max_gpu_budget: is 8, but the minimum of 9 decode workers needs 9 GPUs",
        ),
        (
            "{environment: virtual, mode: disagg, min_endpoint: 2, prefill_engine_num_gpu: 4}",
            "is 8, but the minimum of 2 prefill workers and 2 decode workers needs 10 GPUs",
        ),
        ("{environment: virtual, min_gpu_budget: 9}", "min_gpu_budget: 9 is more than max_gpu_budget 8"),
        (
            "{environment: virtual, decode_scale_down_kv_rate: 0.9, decode_scale_up_kv_rate: 0.5}",
            "decode_scale_down_kv_rate: 0.9 must be less than decode_scale_up_kv_rate 0.5",
        ),
        ("[1]", "must hold names and their values"),
        ("{a: [", "is neither JSON nor YAML"),
    ],
)
def test_what_is_wrong_is_named(text: str, sentence: str) -> None:
    with pytest.raises(PlannerConfigError, match=sentence):
        parse_config(text)


def test_a_planner_with_defaults_reads_a_frontend_with_defaults() -> None:
    frontend = FrontendConfig.from_env({})
    assert PlannerConfig().frontend_url == f"http://{frontend.host}:{frontend.port}"


def test_flags_beat_variables_which_beat_the_file() -> None:
    text = "{environment: virtual, ttft_ms: 100, itl_ms: 10, mode: disagg, advisory: true}"
    environ = {"DYN_PLANNER_TTFT_MS": "200", "DYN_PLANNER_ITL_MS": "20", "DYN_PLANNER_MAX_GPU_BUDGET": "12"}
    words = ["--ttft-ms", "300", "--no-advisory"]
    flags = vars(parser().parse_args(words))
    config = read_config(text, environ, given_flags(flags, PlannerConfig))
    assert (config.ttft_ms, config.itl_ms, config.mode, config.max_gpu_budget) == (300.0, 20.0, "disagg", 12)
    assert not config.advisory


def test_flags_alone_are_a_configuration() -> None:
    assert read_config(None, {}, {"environment": "virtual"}) == parse_config("{environment: virtual}")
    with pytest.raises(PlannerConfigError, match="the planner's settings: deployment: environment local needs"):
        read_config(None)


@pytest.mark.parametrize(
    ("environ", "flags", "sentence"),
    [
        ({}, {"ttft_ms": "-1"}, "--ttft-ms must be above 0, not -1.0"),
        (
            {"DYN_PLANNER_MODE": "both"},
            {},
            "DYN_PLANNER_MODE must be one of agg, disagg, prefill or decode, not 'both'",
        ),
    ],
)
def test_a_wrong_flag_or_variable_is_refused_by_its_name(
    environ: dict[str, str], flags: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_config("{environment: virtual}", environ, flags)


def test_each_key_of_a_file_is_a_flag() -> None:
    assert {option.key for option in options(PlannerConfig)} == set(PlannerConfig.__struct_fields__)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PlannerConfigError, match=r"gone\.yaml: No such file"):
        read_config("gone.yaml")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_config(data)
    except PlannerConfigError:
        pass
