"""Requests split between a prefill and a decode worker, in one process: whatever happens, the answer is whole."""

from __future__ import annotations

import asyncio
import random

import pytest

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.handoff.messages import read_offer
from dynamo.handoff.router.handoffs import Prefill
from dynamo.handoff.router.recent import HandoffStage
from dynamo.handoff.worker.decode import fetch_state
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.router import RoutingConfig
from dynamo.runtime import Context
from dynamo.settings.router import HandoffConfig
from support.asking import asking
from support.services import free_port
from support.sinks import Kept
from support.splitting import ALWAYS, SplitStack, held
from support.waiting import until


def long(first: int = 1, tokens: int = 100, max_tokens: int = 8, **more: object) -> PreprocessedRequest:
    return asking([first, *range(2, tokens + 1)], max_tokens=max_tokens, ignore_eos=True, **more)


async def test_a_prefill_worker_computes_the_prompt_and_a_decode_worker_continues() -> None:
    async with SplitStack() as side:
        prefill, decode = await side.mocker("prefill"), await side.mocker("decode")
        await side.ready()
        sink, delivery = await side.ask(long())
        assert len(sink.ids) == 8
        assert decode.engine.ranks.load()[0].prefix_hit_tokens == 96
        decision = delivery.placement and delivery.placement.decision
        assert decision
        assert (decision.prefill_worker_id, decision.worker_id) == (prefill.id, decode.id)
        assert decision.reasons()["prefill"]["reason"] == "always"
        assert side.reasons == {(True, "always"): 1}
        await until(lambda: held(prefill) == held(decode) == 0)


async def test_only_what_the_prefill_worker_had_cached_counts_as_cached() -> None:
    async with SplitStack() as side:
        await side.mocker("prefill")
        await side.mocker("decode")
        await side.ready()
        for cached in (0, 96):
            sink, _ = await side.ask(long())
            assert sink.last.completion_usage
            assert sink.last.completion_usage.prompt_tokens_details == {"cached_tokens": cached}
        assert side.reasons == {(True, "always"): 2}


async def test_the_last_hand_offs_are_kept_for_people() -> None:
    async with SplitStack() as side:
        decode = await side.mocker("decode")
        await side.ready(prefills=0)
        await side.ask(long(1))
        prefill = await side.mocker("prefill")
        await side.until_known(prefills=1)
        await side.ask(long(2))
        local, split = side.handoffs.recent
        assert (local.stage, local.reason, local.prefill_id) == (HandoffStage.LOCAL, "no_prefill", None)
        assert (split.stage, split.reason, split.prefill_id) == (HandoffStage.DONE, "always", prefill.id)
        assert split.decode_id == decode.id
        assert split.prefill_seconds is not None
        assert split.handoff_seconds is not None


async def test_the_answer_is_that_of_an_aggregated_worker() -> None:
    async with SplitStack() as split, SplitStack() as whole:
        await split.mocker("prefill"), await split.mocker("decode")
        await whole.mocker("agg")
        await split.ready()
        await whole.models.wait_for("m")
        for first in range(20):
            request = long(first, tokens=random.Random(first).randrange(1, 200))
            assert (await split.ask(request))[0].ids == (await whole.ask(request))[0].ids


async def test_aggregated_workers_are_never_split_and_have_no_split_object() -> None:
    async with SplitStack() as side:
        await side.mocker("prefill"), await side.mocker("agg")
        await side.ready()
        assert side.handoffs.begin() is None
        assert len((await side.ask(long()))[0].ids) == 8


async def test_without_a_prefill_worker_the_decode_worker_computes_the_prompt() -> None:
    async with SplitStack() as side:
        await side.mocker("decode")
        await side.ready(prefills=0)
        assert len((await side.ask(long()))[0].ids) == 8
        assert side.reasons == {(False, "no_prefill"): 1}


async def test_the_last_prefill_worker_leaves_and_returns_and_splitting_resumes() -> None:
    async with SplitStack() as side:
        await side.mocker("decode")
        await side.ready(prefills=0)
        for turn in range(2):
            prefill = await side.mocker("prefill")
            await side.until_known(prefills=1)
            await side.ask(long(turn))
            await prefill.leave()
            await side.until_known(prefills=0)
            await side.ask(long(turn + 10))
        assert side.reasons == {(True, "always"): 2, (False, "no_prefill"): 2}


async def test_a_prompt_shorter_than_a_block_stays_at_the_decode_worker() -> None:
    async with SplitStack() as side:
        await side.mocker("prefill"), await side.mocker("decode")
        await side.ready()
        await side.ask(long(tokens=15))
        assert side.reasons == {(False, "short"): 1}


@pytest.mark.parametrize("first", ["decode", "prefill"])
async def test_workers_with_other_blocks_are_not_paired(caplog: pytest.LogCaptureFixture, first: str) -> None:
    async with SplitStack() as side:
        blocks = {"decode": 16, "prefill": 32}
        for mode in sorted(blocks, key=lambda mode: mode != first):
            await side.mocker(mode, block_size=blocks[mode])
        await side.ready()
        assert len((await side.ask(long()))[0].ids) == 8
        assert side.reasons == {(False, "no_prefill"): 1}
        assert caplog.text.count("blocks of 32 tokens, not 16") == 1


async def test_a_client_may_name_the_prefill_worker_and_one_that_is_gone_is_not_missed() -> None:
    async with SplitStack(RoutingConfig(conditional_disagg_config=HandoffConfig(policy="never"))) as side:
        one, two = await side.mocker("prefill"), await side.mocker("prefill")
        await side.mocker("decode")
        await side.ready(prefills=2)
        for worker in (one, two, one):
            _, delivery = await side.ask(long(prefill_worker_id=worker.id))
            assert delivery.placement
            assert delivery.placement.decision
            assert delivery.placement.decision.prefill_worker_id == worker.id
        assert len((await side.ask(long(prefill_worker_id=12345)))[0].ids) == 8
        assert side.reasons == {(True, "pinned"): 3, (False, "no_prefill"): 1}


async def test_a_prefill_worker_that_dies_while_it_computes_is_replaced_by_another() -> None:
    async with SplitStack() as side:
        slow = await side.mocker("prefill", speedup_ratio=0.001)
        await side.mocker("decode")
        await side.ready()
        asked = asyncio.create_task(side.ask(long()))
        await until(lambda: not slow.engine.quiet())
        await side.mocker("prefill")
        await side.until_known(prefills=2)
        await slow.die()
        sink, _ = await asked
        assert len(sink.ids) == 8
        assert sink.error is None
        assert side.reasons == {(True, "always"): 1}


async def test_a_decode_worker_that_dies_is_replaced_and_its_offer_given_back() -> None:
    async with SplitStack() as side:
        prefill = await side.mocker("prefill")
        slow = await side.mocker("decode", speedup_ratio=0.001)
        await side.ready()
        asked = asyncio.create_task(side.ask(long()))
        await until(lambda: not slow.engine.quiet())
        await side.mocker("decode")
        await until(lambda: len(side.model.router.instances) == 2)
        await slow.die()
        sink, delivery = await asked
        assert len(sink.ids) == 8
        assert sink.error is None
        assert delivery.instance_id != slow.id
        await until(lambda: held(prefill) == 0)


async def test_with_bootstrap_both_workers_get_the_request_at_once_and_meet() -> None:
    async with SplitStack() as side:
        engine = MockerEngine(MockerArgs(disaggregation_mode="prefill", block_size=16, speedup_ratio=0.0))
        place = {"bootstrap_host": "127.0.0.1", "bootstrap_port": free_port()}
        prefill = await side.worker(engine, await engine.start(), **place)
        decode = await side.mocker("decode")
        await side.ready()
        sink, _ = await side.ask(long())
        assert sink.error is None
        assert sink.last.completion_usage
        assert sink.last.completion_usage.prompt_tokens_details == {"cached_tokens": 96}
        assert side.reasons == {(True, "always"): 1}
        await until(lambda: held(prefill) == held(decode) == 0)


async def test_with_bootstrap_a_prefill_that_is_refused_leaves_the_prompt_to_the_decode_worker() -> None:
    async with SplitStack() as side:
        engine = MockerEngine(
            MockerArgs(disaggregation_mode="prefill", block_size=16, speedup_ratio=0.0, num_gpu_blocks=4)
        )
        place = {"bootstrap_host": "127.0.0.1", "bootstrap_port": free_port()}
        await side.worker(engine, await engine.start(), **place)
        await side.mocker("decode")
        await side.ready()
        assert len((await side.ask(long()))[0].ids) == 8


async def test_a_leaving_prefill_worker_waits_until_its_offer_is_taken() -> None:
    async with SplitStack() as side:
        worker = await side.mocker("prefill")
        await side.mocker("decode")
        await side.ready()
        (decode_id,) = [peer.instance_id for peer in side.handoffs.pool.decodes()]
        prefill = Prefill(side.handoffs, 100, Context(), lambda _: None)
        delivery = prefill.delivery(long(), decode_id)
        await delivery.start()
        await prefill.answered(delivery)
        offer = read_offer(prefill.value.result().disaggregated_params)
        assert offer
        leaving = asyncio.create_task(worker.leave())
        await side.until_known(prefills=0)
        assert held(worker) == 6
        assert not leaving.done()
        assert await fetch_state(side.runtime, offer)
        await leaving
        assert held(worker) == 0


@pytest.mark.parametrize("seed", range(4))
async def test_cancelling_at_any_moment_leaves_no_blocks_and_no_record(seed: int) -> None:
    chance = random.Random(seed)
    async with SplitStack(ALWAYS) as side:
        workers = [await side.mocker(mode) for mode in ("prefill", "decode")]
        await side.ready()

        async def cancelled(number: int, turns: int) -> None:
            context, sink = Context(), Kept()
            delivery = side.delivery(long(number, max_tokens=50), context, sink)
            starting = asyncio.create_task(delivery.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                starting.cancel()
            context.kill()
            await asyncio.gather(starting, return_exceptions=True)
            await delivery.close()

        await asyncio.gather(*(cancelled(number, chance.randrange(60)) for number in range(100)))
        await until(lambda: all(worker.engine.quiet() and held(worker) == 0 for worker in workers))
        assert all(worker.engine.held_blocks() == 0 for worker in workers)
        assert not any(side.handoffs.pool.waiting(worker.id) for worker in workers)
        assert len((await side.ask(long()))[0].ids) == 8
