"""What every backend promises."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.runtime.discovery import Delete, DiscoveryError, Put, Synced
from support.following import Participant, changes_until, snapshot
from support.waiting import PATIENCE


async def test_a_watch_tells_what_stands_then_synced_then_what_changes(participant: Participant) -> None:
    worker, frontend = await participant(), await participant()
    await worker.put("v1/a", b"1")
    await worker.put("v1/b", b"\x00\xff")
    async with aclosing(frontend.watch("v1/")) as changes:
        assert sorted(await snapshot(changes), key=str) == [Put("v1/a", b"1"), Put("v1/b", b"\x00\xff")]
        await worker.put("v1/c", b"")
        assert await changes_until(changes, Put("v1/c", b"")) == [Put("v1/c", b"")]
        await worker.put("v1/a", b"2")
        assert await changes_until(changes, Put("v1/a", b"2")) == [Put("v1/a", b"2")]
        await worker.delete("v1/b")
        assert await changes_until(changes, Delete("v1/b")) == [Delete("v1/b")]


async def test_a_watch_of_nothing_is_synced_at_once(participant: Participant) -> None:
    async with aclosing((await participant()).watch("v1/none/")) as changes:
        assert await anext(changes) == Synced()


async def test_a_watch_tells_only_its_prefix(participant: Participant) -> None:
    worker = await participant()
    await worker.put("v1/instances/a", b"1")
    await worker.put("v1/instances-of-another/a", b"1")
    async with aclosing(worker.watch("v1/instances/")) as changes:
        assert await snapshot(changes) == [Put("v1/instances/a", b"1")]
        await worker.put("v1/cards/a", b"1")
        await worker.put("v1/instances/b", b"2")
        assert await changes_until(changes, Put("v1/instances/b", b"2")) == [Put("v1/instances/b", b"2")]


async def test_the_empty_prefix_is_everything(participant: Participant) -> None:
    worker = await participant()
    await worker.put("a", b"1")
    await worker.put("~", b"2")
    assert await worker.get_prefix("") == {"a": b"1", "~": b"2"}
    async with aclosing(worker.watch("")) as changes:
        assert len(await snapshot(changes)) == 2


async def test_putting_the_same_value_again_tells_nothing(participant: Participant) -> None:
    worker = await participant()
    await worker.put("v1/a", b"1")
    async with aclosing(worker.watch("v1/")) as changes:
        await snapshot(changes)
        await worker.put("v1/a", b"1")
        await worker.put("v1/b", b"1")
        assert await changes_until(changes, Put("v1/b", b"1")) == [Put("v1/b", b"1")]


async def test_the_last_of_many_quick_updates_is_told(participant: Participant) -> None:
    worker = await participant()
    async with aclosing(worker.watch("v1/")) as changes:
        await snapshot(changes)
        for step in range(20):
            await worker.put("v1/a", b"%d" % step)
        await changes_until(changes, Put("v1/a", b"19"))
    assert await worker.get_prefix("v1/") == {"v1/a": b"19"}


async def test_close_removes_own_records_only(participant: Participant) -> None:
    leaving, staying, frontend = await participant(), await participant(), await participant()
    await leaving.put("v1/leaving", b"1")
    await staying.put("v1/staying", b"2")
    async with aclosing(frontend.watch("v1/")) as changes:
        await snapshot(changes)
        await leaving.close()
        assert await changes_until(changes, Delete("v1/leaving")) == [Delete("v1/leaving")]
    assert await frontend.get_prefix("v1/") == {"v1/staying": b"2"}


async def test_a_record_taken_over_outlives_its_first_owner(participant: Participant) -> None:
    first, second = await participant(), await participant()
    await first.put("v1/a", b"first")
    await second.put("v1/a", b"second")
    await first.delete("v1/a")
    await first.close()
    assert await second.get_prefix("v1/") == {"v1/a": b"second"}


async def test_deleting_what_is_not_there_or_not_ours_changes_nothing(participant: Participant) -> None:
    owner, other = await participant(), await participant()
    await owner.put("v1/a", b"1")
    await other.delete("v1/a")
    await other.delete("v1/never")
    assert await other.get_prefix("v1/") == {"v1/a": b"1"}


async def test_two_watchers_of_one_participant_are_told_the_same(participant: Participant) -> None:
    worker, frontend = await participant(), await participant()
    async with aclosing(frontend.watch("v1/")) as one, aclosing(frontend.watch("v1/")) as two:
        await snapshot(one)
        await snapshot(two)
        await worker.put("v1/a", b"1")
        assert await changes_until(one, Put("v1/a", b"1")) == await changes_until(two, Put("v1/a", b"1"))
        await one.aclose()
        await worker.put("v1/b", b"1")
        await changes_until(two, Put("v1/b", b"1"))


async def test_closing_or_cancelling_a_watch_leaves_no_task_behind(participant: Participant) -> None:
    frontend = await participant()
    before = tasks_of_clients()
    async with aclosing(frontend.watch("v1/")) as changes:
        await snapshot(changes)

    async def follow() -> None:
        async for _ in frontend.watch("v1/"):
            synced.set()

    synced = asyncio.Event()
    consumer = asyncio.create_task(follow())
    async with asyncio.timeout(PATIENCE):
        await synced.wait()
    consumer.cancel()
    await asyncio.wait([consumer])
    assert consumer.cancelled()
    assert tasks_of_clients() == before


def tasks_of_clients() -> set[asyncio.Task[Any]]:
    """All but those of a stand-in for a server, which runs on the same loop."""
    return {task for task in asyncio.all_tasks() if "RequestHandler" not in repr(task.get_coro())}


async def test_closing_the_participant_ends_its_watches_and_refuses_more(participant: Participant) -> None:
    frontend = await participant()
    async with aclosing(frontend.watch("v1/")) as changes:
        await snapshot(changes)
        following = asyncio.create_task(anext(changes, None))
        await asyncio.sleep(0)
        await frontend.close()
        async with asyncio.timeout(PATIENCE):
            assert await following is None
    with pytest.raises(DiscoveryError):
        await frontend.put("v1/a", b"1")
    with pytest.raises(DiscoveryError):
        await frontend.get_prefix("v1/")
    await frontend.close()


@pytest.mark.parametrize("key", ["", "v1/\n", "v1/é", "v1/\x00", "\ud800"])
async def test_a_key_that_is_not_printable_ascii_is_refused(participant: Participant, key: str) -> None:
    worker = await participant()
    with pytest.raises(ValueError, match="printable ASCII"):
        await worker.put(key, b"")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_any_printable_key_and_any_value_come_back(participant: Participant, data: st.DataObject) -> None:
    keys = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=400)
    records = data.draw(st.dictionaries(keys, st.binary(max_size=300), max_size=4))
    worker = await participant()
    for key, value in records.items():
        await worker.put(key, value)
    assert await worker.get_prefix("") == records
    await worker.close()
