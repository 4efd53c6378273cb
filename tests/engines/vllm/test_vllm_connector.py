"""How a vLLM worker of one role is configured, before anything is loaded."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.arguments import engine_arguments
from dynamo.engines.vllm.connector import announce
from dynamo.engines.vllm.engine import VllmEngine
from dynamo.engines.vllm.outbox import Outbox
from dynamo.model import LocalModel, bundled
from support.waiting import until

HOST, PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
BOTH = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'


def arguments(*flags: str, cpu: bool = True) -> Any:
    spec = EngineSpec(model=LocalModel(source="some", path=bundled()), model_name="m", arguments=list(flags))
    return engine_arguments(spec, cpu=cpu, sockets=Path("/tmp/sockets"))


@pytest.mark.parametrize(
    ("flags", "role"),
    [
        (["--disaggregation-mode", "prefill"], "kv_producer"),
        (["--disaggregation-mode", "decode"], "kv_consumer"),
        (["--is-prefill-worker"], "kv_producer"),
        (["--is-decode-worker"], "kv_consumer"),
        (["--disaggregation-mode", "decode", "--kv-transfer-config", BOTH], "kv_both"),
    ],
)
def test_each_role_has_its_side_of_nixl(flags: list[str], role: str) -> None:
    config = arguments(*flags).kv_transfer_config
    assert (config.kv_connector, config.kv_role, config.kv_buffer_device) == ("NixlConnector", role, "cpu")


def test_a_prompt_that_cannot_be_fetched_is_computed() -> None:
    for more in ([], ["--kv-transfer-config", BOTH]):
        config = arguments("--disaggregation-mode", "decode", *more).kv_transfer_config
        assert config.kv_load_failure_policy == "recompute"


def test_a_worker_of_both_roles_has_no_connector() -> None:
    made = arguments()
    assert (made.disaggregation_mode, made.kv_transfer_config) == ("agg", None)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--disaggregation-mode", "encode"], "vLLM: argument --disaggregation-mode: invalid choice: 'encode'"),
        (
            ["--disaggregation-mode", "prefill", "--kv-transfer-config", BOTH.replace("kv_both", "kv_consumer")],
            "--disaggregation-mode prefill needs the kv_role kv_producer or kv_both in --kv-transfer-config",
        ),
        (
            ["--disaggregation-mode", "decode", "--kv-offload-gb", "1"],
            "--kv-offload-gb and --disaggregation-mode both choose a connector",
        ),
    ],
)
def test_a_role_that_cannot_work_is_refused_in_one_sentence(flags: list[str], sentence: str) -> None:
    with pytest.raises(EngineError) as refused:
        arguments(*flags, cpu="--kv-offload-gb" not in flags)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_a_missing_nixl_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "ixl" in name else find(name))
    with pytest.raises(EngineError, match="--disaggregation-mode prefill needs NIXL: pip install --no-deps nixl"):
        arguments("--disaggregation-mode", "prefill")


def test_engines_find_each_other_at_ports_that_are_free() -> None:
    environ = {"DYN_TCP_RPC_HOST": "127.0.0.1"}
    announce(environ, ranks=3)
    assert environ[HOST] == "127.0.0.1"
    for rank in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", int(environ[PORT]) + rank))


def test_addresses_that_the_user_chose_stay() -> None:
    environ = {HOST: "10.9.8.7", PORT: "5600"}
    announce(environ)
    assert environ == {HOST: "10.9.8.7", PORT: "5600"}


@pytest.mark.parametrize(("params", "reaches"), [({"do_remote_prefill": True}, True), (None, False)])
async def test_vllm_learns_of_a_request_that_ends_unsent_if_another_engine_holds_its_prompt(
    params: dict[str, Any] | None, reaches: bool
) -> None:
    core = CoreCalls()
    outbox = Outbox(core, lambda id, error: None)
    extra = {"kv_transfer_params": params} if params else None
    outbox.add(SimpleNamespace(request_id="r1", sampling_params=SimpleNamespace(extra_args=extra)))
    outbox.abort("r1")
    await until(lambda: outbox.empty)
    assert core.calls == ([("add", "r1"), ("abort", ["r1"])] if reaches else [])


class CoreCalls:
    """What reaches the engine's process."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def add_request_async(self, request: Any) -> None:
        self.calls.append(("add", request.request_id))

    async def abort_requests_async(self, ids: list[str]) -> None:
        self.calls.append(("abort", ids))

    async def reset(self, **asked: bool) -> bool:
        self.calls.append(("reset", asked))
        return True


async def test_clearing_the_cache_reaches_what_a_connector_keeps() -> None:
    core = CoreCalls()
    llm = SimpleNamespace(reset_prefix_cache=core.reset, engine_core=SimpleNamespace(engine_ranks_managed=[]))
    sockets = TemporaryDirectory()
    engine = VllmEngine(arguments(), sockets)
    engine._llm = llm
    assert await engine.clear_cache()
    assert core.calls == [("reset", {"reset_connector": True})]
    sockets.cleanup()
