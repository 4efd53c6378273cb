"""`dynamo profile` measures an engine whose times are known: a mocker in virtual time, behind a way of known length."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Any

import aiohttp
import pytest

from dynamo.engines.mocker import MockerArgs, MockerEngine, Profile, ProfileTiming
from dynamo.engines.mocker.profile import About
from dynamo.lab.profile.fit_profile import DecodeFit, PrefillTime, profile_from
from dynamo.lab.profile.measure import fit_engine
from dynamo.lab.profile.remote_engine import RemoteEngine
from dynamo.lab.simulate.virtual_time import run
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, StopConditions
from dynamo.protocols.errors import DynamoException

WAY = 0.004
TRUE = DecodeFit(idle=6.0, per_request=0.1, per_token=0.0004)
PREFILLS = [PrefillTime(tokens, 8.0 + 0.04 * tokens) for tokens in (16, 8192)]
TIMES = profile_from(PREFILLS, TRUE, 8192, 64, About(shared_ms=5.0))


class Answer:
    def __init__(self, times: list[float]) -> None:
        self.times = times
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tokens(self, ids: list[int]) -> None:
        self.times += [asyncio.get_running_loop().time() + WAY / 2] * len(ids)

    def item(self, value: Any) -> None:
        assert isinstance(value, EngineOutput)
        self.tokens(value.token_ids)

    def end(self) -> None:
        self.done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        self.done.set_exception(error)


class MockedEngine(RemoteEngine):
    """The requests go to a mocker in this process, and take half of the way before and half of it after."""

    def __init__(self, http: aiohttp.ClientSession, args: MockerArgs) -> None:
        super().__init__(http, "", "m", 2048, 2048)
        self.clock = asyncio.get_running_loop().time
        self._random = random.Random(1)
        self.mocker = MockerEngine(args, timing=ProfileTiming(TIMES, args))
        self._numbers = count(1)

    async def token_times(self, prompt: int | list[int], answer: int, seen: list[float] | None = None) -> list[float]:
        assert isinstance(prompt, int)
        times = [] if seen is None else seen
        await asyncio.sleep(WAY / 2)
        sink = Answer(times)
        ids = [next(self._numbers), *range(1000, 1000 + prompt - 1)]
        stop = StopConditions(max_tokens=answer, ignore_eos=True)
        running = self.mocker.generate(PreprocessedRequest(model="m", token_ids=ids, stop_conditions=stop), sink)
        try:
            await sink.done
        finally:
            running.abort()
        await asyncio.sleep(WAY / 2)
        return times


def fitted(args: MockerArgs) -> Profile:
    async def work() -> Profile:
        async with aiohttp.ClientSession() as http:
            engine = MockedEngine(http, args)
            await engine.mocker.start()
            found = await fit_engine(engine, 2048, 16, {"block_size": args.block_size})
            await engine.mocker.close()
            return found

    return run(work())


@pytest.mark.parametrize("ahead", [False, True])
def test_what_an_engine_does_is_found_from_outside(ahead: bool) -> None:
    found = fitted(MockerArgs(async_scheduling=ahead, block_size=64))
    assert found.about.engine["async_scheduling"] is ahead
    assert found.about.frontend_ms == pytest.approx(1000 * WAY, abs=0.5)
    assert found.about.shared_ms == pytest.approx(5.0, abs=1.0)
    known, timing = ProfileTiming(TIMES, MockerArgs()), ProfileTiming(found, MockerArgs())
    for tokens in (100, 700, 1900):
        assert timing.prefill(tokens) == pytest.approx(known.prefill(tokens), rel=0.05)
    for requests, context in ((3, 400), (12, 1500)):
        assert timing.decode(requests, requests * context) == pytest.approx(
            known.decode(requests, requests * context), rel=0.05
        )
        assert timing.mixed(500, requests, requests * context) == pytest.approx(
            known.mixed(500, requests, requests * context), rel=0.05
        )
