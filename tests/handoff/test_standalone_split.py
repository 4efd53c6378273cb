"""A router without a frontend splits requests as a frontend does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import structs

from dynamo.handoff.router.handoffs import Handoffs
from dynamo.protocols.engine import PrefillResult
from dynamo.router.standalone.standalone import StandaloneRouter
from dynamo.runtime import Context, EndpointId
from support.asking import asking
from support.sinks import Kept
from support.splitting import SplitStack, held
from support.waiting import until

PROMPT = asking(list(range(1, 101)), max_tokens=8, ignore_eos=True)


@asynccontextmanager
async def standing(side: SplitStack) -> AsyncIterator[tuple[StandaloneRouter, Handoffs]]:
    """A router that knows one worker of each role."""
    router = StandaloneRouter(side.runtime, EndpointId("ns", "decode"), side.config)
    try:
        await router.start()
        handoffs = router.handoffs
        assert handoffs
        await until(lambda: len(handoffs.pool) == len(router.core.instances) == 1)
        yield router, handoffs
    finally:
        await router.close()


async def test_a_request_is_split_unless_its_caller_has_done_that() -> None:
    async with SplitStack() as side:
        prefill, decode = await side.mocker("prefill"), await side.mocker("decode")
        async with standing(side) as (router, handoffs):
            split_before = structs.replace(PROMPT, prefill_result=PrefillResult(disaggregated_params={}))
            for request in (PROMPT, split_before):
                sink = Kept()
                await router.send(request, Context(), sink)
                await sink.done
                assert sink.error is None
                assert len(sink.ids) == 8
            assert handoffs.stats.decisions == {(True, "always"): 1}
            assert router.core.active == 0
            await until(lambda: held(prefill) == held(decode) == 0)


async def test_a_caller_that_leaves_while_its_prompt_is_computed_leaves_nothing_behind() -> None:
    async with SplitStack() as side:
        prefill, _ = await side.mocker("prefill", speedup_ratio=0.001), await side.mocker("decode")
        async with standing(side) as (router, handoffs):
            sending = asyncio.create_task(router.send(PROMPT, Context(), Kept()))
            await until(lambda: not prefill.engine.quiet())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await until(lambda: prefill.engine.quiet() and held(prefill) == 0)
            assert router.core.active == 0
            assert not handoffs.pool.waiting(prefill.id)
