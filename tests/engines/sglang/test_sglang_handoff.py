"""The hand-off in SGLang's published form: both workers get `bootstrap_host`, `bootstrap_port` and `bootstrap_room`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from sglang.srt.entrypoints.engine import Engine as StandIn

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import LocalModel, bundled
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import BootstrapInfo, PrefillResult, PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument, ProtocolError, Unavailable
from support.asking import answer, asking

Make = Callable[[str], Any]
INFO = BootstrapInfo(bootstrap_host="10.1.2.3", bootstrap_port=8998, bootstrap_room=(1 << 63) - 1)


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "10.1.2.3")
    engines: list[Any] = []

    def made(mode: str) -> Any:
        model = LocalModel(source="tiny", path=bundled())
        flags = ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "nixl"]
        engines.append(make_engine("sglang", EngineSpec(model=model, model_name="m", arguments=flags)))
        return engines[-1]

    yield made
    for engine in engines:
        await engine.close()
    StandIn.started.clear()


def split(**fields: Any) -> PreprocessedRequest:
    return msgspec.structs.replace(asking([5, 6, 7], max_tokens=2), **fields)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_both_engines_get_the_room_in_which_they_meet(make: Make, mode: str) -> None:
    engine = make(mode)
    await engine.start()
    request = split(bootstrap_info=INFO)
    asked = engine.prefilling(request) if mode == "prefill" else engine.continuing(request)
    assert (await answer(engine, asked)).error is None
    (sent,) = StandIn.started[0].tokenizer_manager.requests
    assert (sent.bootstrap_host, sent.bootstrap_port, sent.bootstrap_room) == ("10.1.2.3", 8998, (1 << 63) - 1)


async def test_a_prefill_worker_says_where_its_rooms_are(make: Make) -> None:
    engine = make("prefill")
    info = await engine.start()
    assert (info.worker_type, info.bootstrap) == (WorkerType.Prefill, ("10.1.2.3", 8998))
    assert engine.transfer == "SGLang by nixl, KV in auto"


async def test_a_decode_worker_says_that_it_computes_no_prompts(make: Make) -> None:
    engine = make("decode")
    info = await engine.start()
    assert (info.worker_type, info.computes_prompts, info.bootstrap) == (WorkerType.Decode, False, None)
    refused = await answer(engine, split())
    assert isinstance(refused.error, Unavailable)
    with pytest.raises(ProtocolError, match="bootstrap_info"):
        engine.continuing(split(prefill_result=PrefillResult(disaggregated_params={})))


async def test_a_prefill_without_a_room_is_refused(make: Make) -> None:
    with pytest.raises(InvalidArgument, match="bootstrap_info"):
        make("prefill").prefilling(split())


@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_the_health_check_of_one_half_transfers_nothing(make: Make, mode: str) -> None:
    payload = make(mode).health_check_payload()
    assert payload["bootstrap_info"]["bootstrap_host"] == "2.2.2.2"
    msgspec.convert(payload, PreprocessedRequest)


async def test_a_worker_of_both_roles_has_an_ordinary_health_check(make: Make) -> None:
    assert "bootstrap_info" not in make("agg").health_check_payload()


async def test_an_unknown_role_is_named(make: Make) -> None:
    with pytest.raises(EngineError, match="must be null, prefill, decode, not encode"):
        make("encode")
