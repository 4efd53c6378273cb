"""The loop whose clock jumps."""

from __future__ import annotations

import asyncio

import pytest

from dynamo.lab.simulate.virtual_time import SimulationStuck, run


def test_a_day_of_sleeping_takes_no_time_and_ends_on_the_second() -> None:
    async def work() -> float:
        await asyncio.sleep(86_400.5)
        return asyncio.get_running_loop().time()

    assert run(work()) == pytest.approx(86_400.5)


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def work() -> list[str]:
        seen: list[str] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append(name)

        await asyncio.gather(after(3.0, "c"), after(1.0, "a"), after(2.0, "b"), after(0.0, "now"))
        return seen

    assert run(work()) == ["now", "a", "b", "c"]


def test_a_timeout_fires_at_its_time() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(work()) == pytest.approx(30)


def test_a_thread_may_answer_while_nothing_else_is_due() -> None:
    async def work() -> int:
        return await asyncio.to_thread(sum, [1, 2, 3])

    assert run(work()) == 6


def test_waiting_for_what_never_happens_is_an_error_and_not_a_hang() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationStuck):
        run(work())
