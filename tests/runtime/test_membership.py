"""Instance records and model cards in discovery, joined into members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dynamo.protocols.card import ModelCard, ModelInput
from dynamo.protocols.instance import Instance
from dynamo.runtime import records
from dynamo.runtime.discovery import Change, DiscoveryError, MemoryDiscovery, MemoryStore
from dynamo.runtime.membership import Member, Membership
from dynamo.runtime.names import CARDS, INSTANCES, EndpointId, card_key, instance_key
from support.waiting import PATIENCE

ENDPOINT = EndpointId("ns", "backend", "generate")
Report = tuple[Member, Member]


def instance(endpoint: EndpointId = ENDPOINT, id: int = 7, address: str = "here") -> Instance:
    return Instance(
        instance_id=id,
        namespace=endpoint.namespace,
        component=endpoint.component,
        endpoint=endpoint.name,
        transport="memory",
        address=address,
    )


def card(name: str = "m") -> ModelCard:
    return ModelCard(name=name, model_type=1, model_input=ModelInput.Text)


class Followed:
    """A store, a participant that writes to it, and the reports of a membership that follows it."""

    def __init__(self, **options: Any) -> None:
        store = MemoryStore()
        self.writer = MemoryDiscovery(store)
        self.discovery = MemoryDiscovery(store)
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self.members = Membership(self.discovery, lambda *report: self._reports.put_nowait(report), **options)

    async def put(self, record: Instance | ModelCard, endpoint: EndpointId = ENDPOINT, id: int = 7) -> None:
        key = instance_key if isinstance(record, Instance) else card_key
        await self.writer.put(key(endpoint, id), records.encode(record))

    async def report(self) -> Report:
        async with asyncio.timeout(PATIENCE):
            return await self._reports.get()

    @property
    def reported(self) -> int:
        return self._reports.qsize()


@asynccontextmanager
async def followed(**options: Any) -> AsyncIterator[Followed]:
    one = Followed(**options)
    await one.members.start()
    yield one
    await one.members.close()


async def test_a_member_joins_changes_and_leaves_as_its_records_do() -> None:
    nothing = Member(ENDPOINT, 7)
    with_card = Member(ENDPOINT, 7, None, card())
    whole = Member(ENDPOINT, 7, instance(), card())
    async with followed(cards=True) as one:
        await one.put(card())
        assert await one.report() == (nothing, with_card)
        await one.put(instance())
        assert await one.report() == (with_card, whole)
        assert list(one.members) == [whole]
        await one.writer.delete(card_key(ENDPOINT, 7))
        without_card = Member(ENDPOINT, 7, instance())
        assert await one.report() == (whole, without_card)
        await one.writer.delete(instance_key(ENDPOINT, 7))
        assert await one.report() == (without_card, nothing)
        assert list(one.members) == []


async def test_all_current_members_are_reported_before_start_returns() -> None:
    one = Followed(cards=True)
    for id in (1, 2, 3):
        await one.put(card(), id=id)
        await one.put(instance(id=id), id=id)
    await one.members.start()
    assert {member.instance_id for member in one.members} == {1, 2, 3}
    assert all(member.instance and member.card for member in one.members)
    await one.members.close()


async def test_cards_and_other_endpoints_are_not_followed_unless_asked_for() -> None:
    other = EndpointId("ns", "backend", "generate2")
    async with followed(path=ENDPOINT.path) as one:
        await one.put(card())
        await one.put(instance(other), other)
        await one.put(instance())
        assert (await one.report())[1] == Member(ENDPOINT, 7, instance())
        assert one.reported == 0


async def test_namespaces_that_are_not_served_are_left_out_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    foreign = EndpointId("foreign", "backend", "generate")
    async with followed(serves=lambda path: path.startswith("ns/")) as one:
        await one.put(instance(foreign), foreign)
        await one.writer.put(f"{INSTANCES}foreign/garbage", b"?")
        await one.put(instance())
        assert (await one.report())[1].endpoint == ENDPOINT
        assert not caplog.records


async def test_a_record_that_says_the_same_in_other_bytes_is_no_change() -> None:
    async with followed(cards=True) as one:
        await one.put(card())
        await one.report()
        await one.writer.put(card_key(ENDPOINT, 7), records.encode(card()) + b" ")
        await one.put(instance())
        assert (await one.report())[1].instance == instance()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{INSTANCES}ns/backend/generate/7", b"?"),
        (f"{INSTANCES}ns/backend/generate/7", records.encode(instance(id=8))),
        (f"{INSTANCES}ns/backend/generate/7", b"[" * 100_000),
        (f"{INSTANCES}ns/backend/generate/07", records.encode(instance())),
        (f"{INSTANCES}ns/backend/generate", b"{}"),
        (f"{CARDS}ns/backend/generate/7", b"?"),
        (f"{CARDS}ns/backend/generate/7", b'{"name":"m","model_type":99999}'),
        (f"{CARDS}ns/backend/generate/7", b'{"name":"m","model_type":1,"context_length":%d}' % 2**70),
        (f"{CARDS}ns/backend/generate/x", b'{"name":"m","model_type":1}'),
    ],
)
async def test_a_malformed_record_is_named_once_and_ignored(
    key: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(cards=True) as one:
        await one.writer.put(key, value)
        await one.put(instance(id=9), id=9)
        assert (await one.report())[1].instance_id == 9
        (warning,) = caplog.messages
        assert f"ignoring the record {key}:" in warning


async def test_a_record_that_becomes_malformed_counts_as_absent() -> None:
    async with followed() as one:
        await one.put(instance())
        await one.report()
        await one.writer.put(instance_key(ENDPOINT, 7), b"?")
        assert (await one.report())[1] == Member(ENDPOINT, 7)
        await one.put(instance(address="elsewhere"))
        assert (await one.report())[1].instance == instance(address="elsewhere")


async def test_discovery_that_cannot_be_watched_fails_the_start() -> None:
    one = Followed()
    await one.discovery.close()
    with pytest.raises(DiscoveryError, match="closed"):
        await one.members.start()


class Silent(MemoryDiscovery):
    """Never gets as far as being in sync."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.watched = asyncio.Event()

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        self.watched.set()
        await asyncio.Event().wait()
        yield


async def test_closing_ends_a_start_that_waits() -> None:
    discovery = Silent()
    members = Membership(discovery, lambda *_: None)
    starting = asyncio.create_task(members.start())
    await discovery.watched.wait()
    await members.close()
    with pytest.raises(DiscoveryError, match="closed"):
        await starting


async def test_a_start_that_is_given_up_leaves_no_watch_behind() -> None:
    discovery = Silent()
    before = asyncio.all_tasks()
    starting = asyncio.create_task(Membership(discovery, lambda *_: None).start())
    await discovery.watched.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert asyncio.all_tasks() == before
