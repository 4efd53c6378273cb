"""What published workers import from `dynamo.common`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

import dynamo.common
from dynamo.common.config_dump import add_config_dump_args, dump_config, get_config_dump, register_encoder
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.endpoint_types import parse_endpoint_types
from dynamo.common.utils.namespace import get_worker_namespace
from dynamo.common.utils.runtime import create_runtime, parse_endpoint, run_async
from dynamo.llm import ModelType


def test_a_dump_has_the_settings_and_hides_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Inner:
        mode: DisaggregationMode

    class Own:
        pass

    @register_encoder(Own)
    def encode(own: Own) -> str:
        return "own"

    monkeypatch.setenv("DYN_API_KEY", "sesame")
    monkeypatch.setenv("DYN_HTTP_PORT", "1234")
    flags = argparse.ArgumentParser()
    add_config_dump_args(flags)
    target = tmp_path / "deep" / "config.json"
    given = flags.parse_args(["--dump-config-to", str(target)])
    given.inner, given.own, given.words = Inner(DisaggregationMode.PREFILL), Own(), {"b", "a"}
    dump_config(given.dump_config_to, given)
    dumped = json.loads(target.read_text())
    assert dumped["config"]["inner"] == {"mode": "DisaggregationMode.PREFILL"}
    assert (dumped["config"]["own"], dumped["config"]["words"]) == ("own", ["a", "b"])
    assert dumped["environment"]["DYN_HTTP_PORT"] == "1234"
    assert "sesame" not in target.read_text()
    assert json.loads(get_config_dump({}, {"more": 1}))["more"] == 1


def test_a_dump_that_cannot_be_written_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    dump_config("/dev/null/config.json", {})
    assert "cannot write the configuration to /dev/null/config.json" in caplog.text


def test_endpoints_and_types_are_read_from_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_endpoint("dyn://a.b.c") == parse_endpoint("a.b.c") == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"a\.b"):
        parse_endpoint("a.b")
    assert parse_endpoint_types("chat, completions") == ModelType.Chat | ModelType.Completions
    for wrong in ("", ",", "chat,talk"):
        with pytest.raises(ValueError, match="endpoint type"):
            parse_endpoint_types(wrong)
    monkeypatch.setenv("DYN_NAMESPACE", "named")
    monkeypatch.setenv("DYN_NAMESPACE_WORKER_SUFFIX", "two")
    assert (get_worker_namespace(), get_worker_namespace("given")) == ("named-two", "given-two")


async def test_a_runtime_is_made_from_the_names_of_its_planes() -> None:
    runtime, loop = create_runtime("memory", "tcp", "zmq")
    assert loop is asyncio.get_running_loop()
    await runtime.close()
    with pytest.warns(DeprecationWarning, match="use_kv_events"):
        runtime, _ = create_runtime("memory", "tcp", use_kv_events=True)
    await runtime.close()

    async def double(number: int) -> int:
        return 2 * number

    assert run_async(double, 4) == await asyncio.to_thread(run_async, double, 4) == 8


def test_what_is_not_there_says_so() -> None:
    with pytest.raises(ImportError, match=r"'backend' is not in this Dynamo's dynamo\.common"):
        dynamo.common.backend  # noqa: B018
