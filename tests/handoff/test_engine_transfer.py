"""Workers whose engines move computed prompts themselves: stand-ins that exchange `kv_transfer_params` like vLLM."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from dynamo.engines.base import EngineInfo
from dynamo.engines.vllm import handoff
from dynamo.handoff.worker.by_engine import EnginePrefillWorker, engine_decode_worker
from dynamo.protocols.card import ModelInput, WorkerType
from dynamo.protocols.engine import EngineOutput, PrefillResult, PreprocessedRequest
from dynamo.protocols.errors import ProtocolError
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink
from support.asking import asking
from support.sinks import Kept
from support.splitting import SplitStack
from support.waiting import until

PROMPT = list(range(100, 164))
WHERE = {"do_remote_prefill": True, "remote_block_ids": [[3, 1, 2]], "remote_port": 5600, "of a later version": None}


class ConnectorEngine:
    """Answers with one token. A prefill engine holds the prompt; the decode engine that continues frees it."""

    model_input = ModelInput.Tokens

    def __init__(self, held: dict[str, list[int]], *, transfer: str = "nixl", silent: bool = False) -> None:
        self.transfer = transfer
        self.asked: list[dict[str, Any] | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._held = held
        self._silent = silent

    async def start(self) -> EngineInfo:
        return EngineInfo()

    def prefilling(self, request: PreprocessedRequest) -> PreprocessedRequest:
        return handoff.prefilling(request)

    def continuing(self, request: PreprocessedRequest) -> PreprocessedRequest:
        return handoff.continuing(request)

    def generate(self, request: PreprocessedRequest, sink: Sink) -> OneAnswer:
        return OneAnswer(self, request, sink)

    def answer(self, request: PreprocessedRequest) -> EngineOutput:
        params = request.kv_transfer_params
        self.asked.append(params)
        where = None
        if params and params.get("do_remote_decode") and not self._silent:
            self._held["p1"] = list(request.token_ids)
            where = {**WHERE, "remote_request_id": "p1"}
        elif params and params.get("do_remote_prefill"):
            assert self._held.pop(params["remote_request_id"]) == list(request.token_ids)
        return EngineOutput(token_ids=[7], finish_reason="length", disaggregated_params=handoff.offered(where))

    def quiet(self) -> bool:
        return True

    async def close(self) -> None: ...


class OneAnswer:
    def __init__(self, engine: ConnectorEngine, request: PreprocessedRequest, sink: Sink) -> None:
        self._engine, self._request, self._sink = engine, request, sink
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._engine.gate.wait()
        self._sink.item(self._engine.answer(self._request))
        self._sink.end()

    def abort(self) -> None:
        if not self._task.done() and self._task is not asyncio.current_task():
            self._task.cancel()
            self._sink.item(EngineOutput(finish_reason="cancelled"))
            self._sink.end()


async def two(side: SplitStack, prefill: ConnectorEngine, decode: ConnectorEngine) -> tuple[Any, Any]:
    workers = []
    for engine, kind in ((prefill, WorkerType.Prefill), (decode, WorkerType.Decode)):
        workers.append(await side.worker(engine, EngineInfo(worker_type=kind, kv_cache_block_size=16)))
    await side.ready()
    return workers[0], workers[1]


async def test_what_the_prefill_engine_answers_reaches_the_decode_engine_unchanged() -> None:
    held: dict[str, list[int]] = {}
    prefill, decode = ConnectorEngine(held), ConnectorEngine(held)
    async with SplitStack() as side:
        await two(side, prefill, decode)
        sink, _ = await side.ask(asking(PROMPT))
    assert sink.ids == [7]
    (asked,) = prefill.asked
    assert asked == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert decode.asked == [{**WHERE, "remote_request_id": "p1"}]
    assert held == {}


async def test_a_prefill_worker_that_leaves_waits_until_its_prompt_was_fetched() -> None:
    held: dict[str, list[int]] = {}
    prefill, decode = ConnectorEngine(held), ConnectorEngine(held)
    async with SplitStack() as side:
        worker, _ = await two(side, prefill, decode)
        decode.gate.clear()
        asked = asyncio.create_task(side.ask(asking(PROMPT)))
        await until(lambda: held)
        leaving = asyncio.create_task(worker.leave())
        await until(lambda: not side.handoffs.pool.instances.routable())
        assert not leaving.done()
        decode.gate.set()
        sink, _ = await asked
        await leaving
    assert (sink.ids, held) == ([7], {})


async def test_a_client_that_leaves_ends_the_stream_of_the_prefill() -> None:
    prefill = ConnectorEngine({})
    handler, context, sink = EnginePrefillWorker(prefill), Context(), Kept()
    handler(asking(PROMPT), context, sink)  # type: ignore[arg-type]
    await until(lambda: handler.open == 1)
    assert not sink.done.done()
    context.kill()
    await sink.done
    assert handler.open == 0
    (asked,) = prefill.asked
    assert asked is not None
    assert asked["do_remote_decode"]


async def test_a_prefill_that_nobody_ends_is_over_after_its_lease() -> None:
    handler, sink = EnginePrefillWorker(ConnectorEngine({}), lease=0.01), Kept()
    handler(asking(PROMPT), Context(), sink)  # type: ignore[arg-type]
    await sink.done
    assert handler.open == 0


async def test_a_prompt_that_is_not_offered_is_computed_by_the_decode_engine() -> None:
    decode = ConnectorEngine({})
    async with SplitStack() as side:
        await two(side, ConnectorEngine({}, silent=True), decode)
        sink, _ = await side.ask(asking(PROMPT))
        assert side.reasons == {(False, "failed"): 1}
    assert (sink.ids, decode.asked) == ([7], [None])


async def test_engines_of_another_form_are_not_paired() -> None:
    decode = ConnectorEngine({})
    async with SplitStack() as side:
        await two(side, ConnectorEngine({}, transfer="mooncake"), decode)
        sink, _ = await side.ask(asking(PROMPT))
        assert side.reasons == {(False, "no_prefill"): 1}
    assert (sink.ids, decode.asked) == ([7], [None])


@pytest.mark.parametrize("params", [{}, {"kv_transfer_params": None}, {"kv_transfer_params": "there"}, {"handoff": {}}])
def test_an_answer_of_another_engine_is_not_continued_from(params: dict[str, Any]) -> None:
    request = structs.replace(asking(PROMPT), prefill_result=PrefillResult(disaggregated_params=params))
    with pytest.raises(ProtocolError, match="has no kv_transfer_params"):
        handoff.continuing(request)


def test_a_prompt_whose_scores_are_wanted_is_computed_where_they_are_read() -> None:
    result = PrefillResult(disaggregated_params={"kv_transfer_params": WHERE})
    with pytest.raises(ProtocolError, match="scores"):
        handoff.continuing(structs.replace(asking(PROMPT, prompt_logprobs=1), prefill_result=result))


class HangingEngine(ConnectorEngine):
    """Its transfers never end."""

    def generate(self, request: PreprocessedRequest, sink: Sink) -> OneAnswer:
        return HangingAnswer(self, request, sink) if request.kv_transfer_params else OneAnswer(self, request, sink)


class HangingAnswer(OneAnswer):
    async def _run(self) -> None:
        self._engine.asked.append(self._request.kv_transfer_params)
        await asyncio.Event().wait()


def continued() -> PreprocessedRequest:
    return structs.replace(
        asking(PROMPT), prefill_result=PrefillResult(disaggregated_params={"kv_transfer_params": WHERE})
    )


async def test_a_prompt_whose_transfer_hangs_is_computed_when_its_lease_has_ended() -> None:
    engine, sink = HangingEngine({}), Kept()
    engine_decode_worker(engine, lease=0.01)(continued(), Context(), sink)  # type: ignore[arg-type]
    await sink.done
    assert sink.ids == [7]
    assert engine.asked == [WHERE, None]


async def test_a_client_that_leaves_while_a_transfer_hangs_ends_the_request() -> None:
    engine, sink, context = HangingEngine({}), Kept(), Context()
    engine_decode_worker(engine)(continued(), context, sink)  # type: ignore[arg-type]
    await until(lambda: engine.asked)
    context.kill()
    await sink.done
    assert engine.asked == [WHERE]
