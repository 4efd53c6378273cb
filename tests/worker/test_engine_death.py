"""When an engine counts as dead, and what is reported of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dynamo.engines.base import DeathListener, EngineError
from dynamo.engines.echo import EchoCore
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.worker.life import close_at_end


class Mortal(EchoCore):
    """Dies when the test says so; `close` does what the test asks."""

    def __init__(self, *, ends_at_close: bool = False, breaks_at_close: bool = False) -> None:
        super().__init__(0)
        self._ends, self._breaks = ends_at_close, breaks_at_close
        self.die: DeathListener = lambda reason: None

    def on_death(self, listener: DeathListener) -> None:
        self.die = listener

    async def close(self) -> None:
        await super().close()
        if self._ends:
            self.die("its process ended with 0")
        if self._breaks:
            raise RuntimeError("no process to close")


async def serve(runtime: DistributedRuntime, engine: Mortal, reason: str | None = None) -> None:
    async with close_at_end(runtime, engine, "mortal"):
        if reason is not None:
            engine.die(reason)


@pytest.fixture
async def runtime() -> AsyncIterator[DistributedRuntime]:
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        yield runtime


async def test_an_engine_that_ends_because_it_is_closed_has_not_died(runtime: DistributedRuntime) -> None:
    await serve(runtime, Mortal(ends_at_close=True))
    assert not runtime.is_shutting_down


async def test_a_dead_engine_that_fails_to_close_is_still_reported_dead(runtime: DistributedRuntime) -> None:
    with pytest.raises(EngineError, match="the engine 'mortal' died: out of memory"):
        await serve(runtime, Mortal(breaks_at_close=True), "out of memory")


async def test_a_living_engine_that_fails_to_close_is_reported(runtime: DistributedRuntime) -> None:
    with pytest.raises(RuntimeError, match="no process to close"):
        await serve(runtime, Mortal(breaks_at_close=True))
