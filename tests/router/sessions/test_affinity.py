"""A session keeps to its worker: where routers agree on it, how it loses it, and when it is free again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import Session
from dynamo.protocols.errors import ResourceExhausted
from dynamo.router.placement import Placement
from dynamo.router.sessions.affinity import Affinity, Binding
from dynamo.router.sessions.table import Key
from dynamo.runtime import Local
from support.scripted import RouterSide, ScriptedWorker, asking, routing
from support.waiting import until

SIZED = ModelRuntimeConfig(total_kv_blocks=1000, max_num_batched_tokens=64, max_num_seqs=2)
MODES = ("round-robin", "random", "least-loaded", "power-of-two", "kv")
ONE, TWO = WorkerRank(1), WorkerRank(2)


@asynccontextmanager
async def fleet(local: Local, *, workers: int, **config: Any) -> AsyncIterator[tuple[RouterSide, list[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(ScriptedWorker(local)) for _ in range(workers)]
        side = await stack.enter_async_context(routing(local, card=SIZED, **config))
        await until(lambda: len(side.client.instance_set) >= workers)
        yield side, made


async def turn(side: RouterSide, session: Session, letters: str = "ABC", **more: Any) -> int:
    """One request of a session, to its end."""
    placement = await place(side, session, letters, **more)
    placement.first_token()
    placement.release()
    return placement.instance_id


async def place(side: RouterSide, session: Session | None, letters: str = "ABC", **more: Any) -> Placement:
    place = partial(side.router.place, asking(letters), session=session, **more)
    return await side.router.instances.reach(place, set(), pinned="pinned" in more)


@pytest.mark.parametrize("mode", MODES)
async def test_turns_go_where_the_last_one_ran(mode: str) -> None:
    async with fleet(Local(), mode=mode, workers=4, session_affinity_ttl_secs=60) as (side, _):
        sessions = [Session(f"s{number}") for number in range(6)]
        # No prompt has a beginning in common with another: only the session says where it belongs.
        first = [await turn(side, one, letters) for one, letters in zip(sessions, "ABCDEF", strict=True)]
        again = [await turn(side, one, letters) for one, letters in zip(sessions, "UVWXYZ", strict=True)]
        assert again == first
        assert len(set(first)) > 1


async def test_without_the_flag_sessions_bind_nothing() -> None:
    async with fleet(Local(), mode="round-robin", workers=2) as (side, _):
        assert len({await turn(side, Session("s")) for _ in range(2)}) == 2


async def test_a_guessed_session_binds_nothing() -> None:
    async with fleet(Local(), mode="round-robin", workers=2, session_affinity_ttl_secs=60) as (side, _):
        assert len({await turn(side, Session("prompt-1", named=False)) for _ in range(2)}) == 2


@pytest.mark.parametrize("mode", ["least-loaded", "kv"])
async def test_a_full_worker_loses_a_session_unless_the_mode_is_hard(mode: str) -> None:
    for strict in ("soft", "hard"):
        async with fleet(Local(), mode=mode, workers=2, session_affinity_ttl_secs=60, session_affinity_mode=strict) as (
            side,
            _,
        ):
            session = Session("s")
            home = await turn(side, session, "A")
            busy = [await place(side, None, "QRSTUVWXYZ" * 4, pinned=home) for _ in range(2)]
            assert (await turn(side, session, "B") == home) is (strict == "hard")
            for each in busy:
                each.release()


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
async def test_a_session_whose_worker_has_left_is_bound_anew(mode: str) -> None:
    async with fleet(Local(), mode=mode, workers=3, session_affinity_ttl_secs=60, session_affinity_mode="hard") as (
        side,
        workers,
    ):
        session = Session("s")
        home = await turn(side, session, "A")
        leaving: ScriptedWorker = next(worker for worker in workers if worker.id == home)
        await leaving.__aexit__()
        await until(lambda: home not in side.client.instance_set)
        second = await turn(side, session, "B")
        assert second != home
        assert await turn(side, session, "C") == second


async def test_a_hard_session_is_refused_where_its_worker_is_busy() -> None:
    async with fleet(
        Local(), mode="kv", workers=2, session_affinity_ttl_secs=60, session_affinity_mode="hard",
        active_prefill_tokens_threshold=8,
    ) as (side, _):  # fmt: skip
        session = Session("s")
        home = await turn(side, session, "A")
        busy = await place(side, None, "QRSTUVW", pinned=home)
        with pytest.raises(ResourceExhausted):
            await place(side, session, "B")
        busy.release()
        assert await turn(side, session, "B") == home


async def test_a_hard_session_that_waits_holds_up_nobody_else() -> None:
    async with fleet(
        Local(), mode="kv", workers=2, session_affinity_ttl_secs=60, session_affinity_mode="hard",
        queue_threshold=0.0,
    ) as (side, _):  # fmt: skip
        session = Session("s")
        home = await turn(side, session, "A")
        busy = await place(side, None, "QRSTUVW", pinned=home)
        waiting = asyncio.create_task(place(side, session, "B"))
        await until(lambda: side.router.waiting == 1)
        free = await place(side, None, "X")
        assert free.instance_id != home
        busy.first_token()
        assert (await waiting).instance_id == home


async def test_two_routers_bind_a_session_to_the_same_worker() -> None:
    local = Local()
    config: dict[str, Any] = {"mode": "round-robin", "workers": 3, "session_affinity_ttl_secs": 60}
    async with fleet(local, **config) as (one, _), fleet(local, **{**config, "workers": 0}) as (two, _):
        await until(lambda: len(two.client.instance_set) == 3)
        await until(lambda: ready(one) and ready(two))
        for name in ("s1", "s2", "s3", "s4"):
            session = Session(name)
            home = await turn(one, session, "A")
            await until(partial(knows, two, session))
            assert await turn(two, session, "B") == home


async def test_a_router_that_starts_later_learns_the_bindings() -> None:
    local = Local()
    config: dict[str, Any] = {"mode": "round-robin", "workers": 3, "session_affinity_ttl_secs": 60}
    async with fleet(local, **config) as (one, _):
        await until(lambda: ready(one))
        homes = {f"s{number}": await turn(one, Session(f"s{number}")) for number in range(5)}
        async with fleet(local, **{**config, "workers": 0}) as (two, _):
            await until(lambda: all(knows(two, Session(name)) for name in homes))
            assert {name: await turn(two, Session(name)) for name in homes} == homes


def ready(side: RouterSide) -> bool:
    sync = side.router._affinity_sync  # type: ignore[attr-defined]
    return bool(sync._asking) and all(task.done() for task in sync._asking.values())


def knows(side: RouterSide, session: Session) -> bool:
    return side.router._affinity.bound(session) is not None  # type: ignore[attr-defined]


def test_a_session_is_free_once_it_was_idle_for_long_and_never_while_it_runs() -> None:
    now = 0.0
    affinity = Affinity(10.0, clock=lambda: now)
    session = Session("s")
    running = affinity.begin(session, ONE, 5)
    running.served()
    now = 100.0
    assert affinity.bound(session) is not None
    running.ended(1)
    now = 110.0
    assert affinity.bound(session) is not None
    now = 110.1
    assert affinity.bound(session) is None


def test_a_session_whose_first_turn_failed_is_free() -> None:
    affinity = Affinity(10.0, clock=lambda: 0.0)
    affinity.begin(Session("s"), ONE, 5).ended(0)
    assert affinity.bound(Session("s")) is None


def test_turns_beside_the_first_one_go_along_before_it_has_a_token() -> None:
    affinity = Affinity(10.0, clock=lambda: 0.0)
    affinity.begin(Session("s"), ONE, 5)
    bound = affinity.bound(Session("s"))
    assert bound is not None
    assert bound.worker == ONE


def test_a_final_turn_frees_the_session() -> None:
    affinity = Affinity(10.0, clock=lambda: 0.0)
    for final in (False, True):
        turn = affinity.begin(Session("s", final=final), ONE, 5)
        turn.served()
        turn.ended(1)
    assert affinity.bound(Session("s")) is None


def test_routers_that_bound_a_session_at_once_agree_on_the_earlier_one() -> None:
    sides = [Affinity(10.0, clock=partial(float, at)) for at in (1, 2)]
    said: list[Any] = []

    def hear(key: Key, one: Binding | None) -> None:
        assert one is not None
        said.append((key, one.worker, one.since, one.moves, one.tokens))

    for side, worker in zip(sides, (ONE, TWO), strict=True):
        side.on_change = hear
        turn = side.begin(Session("s"), worker, 5)
        turn.served()
    for side, message in zip(sides, reversed(said), strict=True):
        side.learn(*message)
    assert [side.bound(Session("s")).worker for side in sides] == [ONE, ONE]  # type: ignore[union-attr]


async def test_a_failed_turn_leaves_an_established_session_where_it_is() -> None:
    async with fleet(Local(), mode="kv", workers=2, session_affinity_ttl_secs=60) as (side, _):
        home = await turn(side, Session("s"), "A")
        (await place(side, Session("s"), "B")).release()
        assert await turn(side, Session("s"), "C") == home
