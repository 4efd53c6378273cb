"""What a prefill worker offers, and how a decode worker takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.handoff.messages import OFFER, HandoffOffer, StateChunk, read_offer
from dynamo.handoff.record import HandoffState
from dynamo.handoff.worker.decode import DecodeWorker, StateSink, fetch_state
from dynamo.handoff.worker.prefill import PrefillWorker
from dynamo.protocols.engine import EngineOutput, PrefillResult, PreprocessedRequest
from dynamo.protocols.errors import Unavailable
from dynamo.runtime import Context, DistributedRuntime, EndpointId, Local, RuntimeConfig
from dynamo.runtime.distributed import Endpoint
from support.asking import asking
from support.sinks import Kept
from support.waiting import until


class KeptOutlet(Kept):
    columnar = True

    async def writable(self) -> None: ...


def mocker(mode: str) -> MockerEngine:
    args = {"block_size": 16, "speedup_ratio": 0.0, "kv_transfer_bandwidth": 0.0, "num_gpu_blocks": 64}
    return MockerEngine(MockerArgs(disaggregation_mode=mode, **args))  # type: ignore[arg-type]


def prompt(**more: object) -> PreprocessedRequest:
    return asking(list(range(1, 101)), max_tokens=8, ignore_eos=True, **more)


class Pair:
    def __init__(self, runtime: DistributedRuntime, prefill: PrefillWorker, decode: DecodeWorker) -> None:
        self.runtime = runtime
        self.prefill = prefill
        self.decode = decode

    async def offered(self, context: Context | None = None) -> tuple[HandoffOffer, KeptOutlet]:
        outlet = KeptOutlet()
        self.prefill(prompt(), context or Context(), outlet)
        await until(lambda: outlet.items)
        output = outlet.items[0]
        assert isinstance(output, EngineOutput)
        assert output.disaggregated_params
        offer = read_offer(output.disaggregated_params)
        assert offer
        return offer, outlet


@asynccontextmanager
async def pair(lease: float = 60.0) -> AsyncIterator[Pair]:
    engines = mocker("prefill"), mocker("decode")
    async with DistributedRuntime(config=RuntimeConfig.in_process({}), local=Local()) as runtime:
        for engine in engines:
            await engine.start()
        prefill = PrefillWorker(engines[0], Endpoint(runtime, EndpointId("ns", "prefill")), lease=lease)
        await prefill.start()
        decode = DecodeWorker(engines[1], engines[1], runtime)
        yield Pair(runtime, prefill, decode)
        await prefill.close()
        await decode.close()
        assert len(prefill.ledger) == 0
        for engine in engines:
            assert engine.held_blocks() == 0
            assert prefill.metrics.leaked_blocks == 0
            await engine.close()


async def test_a_stream_stays_open_until_its_offer_is_taken_and_then_nothing_is_held() -> None:
    async with pair() as both:
        offer, outlet = await both.offered()
        assert offer.tokens == 96
        assert not outlet.done.done()
        assert both.prefill.ledger.blocks == 6
        assert await fetch_state(both.runtime, offer)
        await outlet.done
        assert both.prefill.ledger.settled == {HandoffState.TAKEN: 1}


async def test_an_offer_is_taken_once() -> None:
    async with pair() as both:
        offer, outlet = await both.offered()
        await fetch_state(both.runtime, offer)
        await outlet.done
        with pytest.raises(Unavailable, match="not offered"):
            await fetch_state(both.runtime, offer)


async def test_cancelling_the_stream_gives_the_offer_back() -> None:
    async with pair() as both:
        context = Context()
        offer, outlet = await both.offered(context)
        context.kill()
        await outlet.done
        await until(lambda: both.prefill.ledger.settled == {HandoffState.GIVEN_BACK: 1})
        with pytest.raises(Unavailable, match="not offered"):
            await fetch_state(both.runtime, offer)


async def test_an_offer_that_is_not_taken_expires() -> None:
    async with pair(lease=0.01) as both:
        _, outlet = await both.offered()
        await outlet.done
        await until(lambda: both.prefill.ledger.settled == {HandoffState.EXPIRED: 1})


async def continued(both: Pair, params: dict[str, object]) -> KeptOutlet:
    outlet = KeptOutlet()
    request = prompt()
    request.prefill_result = PrefillResult(disaggregated_params=params)
    both.decode(request, Context(), outlet)
    await outlet.done
    assert outlet.error is None
    assert len(outlet.ids) == 8
    return outlet


async def test_a_decode_worker_continues_from_what_it_takes() -> None:
    async with pair() as both:
        offer, prefilled = await both.offered()
        outlet = await continued(both, {OFFER: as_dict(offer)})
        assert outlet.last.completion_usage
        assert outlet.last.completion_usage.prompt_tokens_details == {"cached_tokens": 96}
        assert (both.decode.metrics.taken, both.decode.metrics.failed) == (1, 0)
        await prefilled.done


@pytest.mark.parametrize("wrong", ["gone", "elsewhere", "malformed", "other tokens", "missing"])
async def test_a_decode_worker_that_cannot_take_an_offer_computes_the_prompt(wrong: str) -> None:
    async with pair() as both:
        context = Context()
        offer, prefilled = await both.offered(context)
        params: dict[str, object] = {OFFER: as_dict(offer)}
        if wrong == "gone":
            params = {OFFER: {**as_dict(offer), "id": "another"}}
        elif wrong == "elsewhere":
            params = {OFFER: {**as_dict(offer), "sender": {**as_dict(offer)["sender"], "instance_id": 5}}}
        elif wrong == "malformed":
            params = {OFFER: {"id": 5}}
        elif wrong == "missing":
            params = {"kv_transfer_params": {"remote_engine_id": "x"}}
        else:
            both.prefill._engine.held_state = damaged  # type: ignore[method-assign]
        await continued(both, params)
        assert (both.decode.metrics.taken, both.decode.metrics.failed) == (0, 1)
        context.kill()
        await prefilled.done


async def damaged(held: object) -> bytes:
    return b"\x92\x10\x91\x05"


def as_dict(offer: HandoffOffer) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(offer)
    return found


@pytest.mark.parametrize(
    "chunks",
    [
        [StateChunk(4, "0", b"abcd")],
        [StateChunk(4, "6497a96f53a89890", b"abc")],
        [],
        [StateChunk(1 << 21, "0", b"abcd")],
    ],
)
async def test_a_damaged_or_incomplete_state_is_refused(chunks: list[StateChunk]) -> None:
    sink = StateSink()
    for chunk in chunks:
        sink.item(chunk)
    sink.end()
    assert sink.whole.exception()


async def test_cancelling_while_a_state_is_fetched_ends_the_request() -> None:
    async with pair() as both:
        keep = Context()
        offer, prefilled = await both.offered(keep)

        async def never(held: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        both.prefill._engine.held_state = never  # type: ignore[method-assign]
        context, outlet, request = Context(), KeptOutlet(), prompt()
        request.prefill_result = PrefillResult(disaggregated_params={OFFER: as_dict(offer)})
        both.decode(request, context, outlet)
        await until(lambda: both.prefill.ledger.settled)
        context.kill()
        await outlet.done
        assert outlet.last.finish_reason == "cancelled"
        await prefilled.done
