"""Which instances get requests: those that fail or say that they are not ready do not, unless there are no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from dynamo.protocols.errors import CannotConnect
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context, breaker
from dynamo.runtime.breaker import FAILURES
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import nothing_to_cancel
from dynamo.runtime.stream import Sink
from support.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(breaker, "PATIENCE_SECONDS", 0.02)


class Channel:
    """Reachable, and answering, as the test says."""

    draining = unheard = announced_end = False
    ready = True

    def __init__(self) -> None:
        self.reachable = self.answers = True
        self.probes = 0

    async def open(self) -> None:
        self.probes += 1
        if not self.reachable:
            raise CannotConnect("no")

    def send(self, request: Any, context: Context, sink: Sink, **_: Any) -> Any:
        if self.answers:
            sink.tokens([1])
        return nothing_to_cancel


class Plane:
    transport = "tcp"

    def __init__(self) -> None:
        self.channels: dict[int, Channel] = {}

    def channel(self, instance: Instance) -> Channel:
        return self.channels.setdefault(instance.instance_id, Channel())


def instance(number: int, **fields: Any) -> Instance:
    named = {"namespace": "a", "component": "b", "endpoint": "c", "transport": "tcp", "address": "x:1"}
    return Instance(**{"instance_id": number, "health_check": {"probe": True}, **named, **fields})


def two() -> tuple[InstanceSet, Plane]:
    plane = Plane()
    instances = InstanceSet("m", plane)  # type: ignore[arg-type]
    for number in (1, 2):
        instances.put(instance(number))
    return instances, plane


async def test_an_instance_that_failed_is_out_until_it_answers_a_probe() -> None:
    instances, plane = two()
    plane.channels[1].answers = False
    instances.inhibit(1)
    assert instances.routable() == (2,)
    async with asyncio.timeout(PATIENCE):
        await until(lambda: plane.channels[1].probes > 2)
        assert instances.routable() == (2,)
        plane.channels[1].answers = True
        await until(lambda: instances.routable() == (1, 2))
    await instances.close()


async def test_an_instance_without_a_health_check_gets_one_request_to_show_that_it_works() -> None:
    instances, _ = two()
    instances.put(instance(1, health_check=None))
    instances.inhibit(1)
    assert instances.routable() == (2,)
    async with asyncio.timeout(PATIENCE):
        await until(lambda: instances.routable() == (1, 2))
    instances.request_sent(1)
    assert instances.routable() == (2,)
    instances.request_answered(1)
    assert instances.routable() == (1, 2)
    await instances.close()


async def test_engine_errors_in_a_row_take_an_instance_out_and_an_answer_between_them_does_not() -> None:
    instances, plane = two()
    plane.channels[1].answers = False
    for _ in range(FAILURES - 1):
        instances.request_failed(1)
    instances.request_answered(1)
    for _ in range(FAILURES - 1):
        instances.request_failed(1)
    assert instances.routable() == (1, 2)
    instances.request_failed(1)
    assert instances.routable() == (2,)
    await instances.close()


async def test_an_instance_that_says_it_is_not_ready_is_passed_over_and_its_followers_see_no_change() -> None:
    instances, _ = two()
    seen: list[int] = []
    instances.follow(lambda id, _: seen.append(id))
    seen.clear()
    instances.put(structs.replace(instance(1), ready=False))
    assert instances.routable() == (2,)
    instances.put(instance(1))
    assert instances.routable() == (1, 2)
    assert seen == []


async def test_with_all_instances_failing_all_are_tried() -> None:
    instances, plane = two()
    for number in (1, 2):
        plane.channels[number].answers = False
        instances.inhibit(number)
    assert instances.routable() == (1, 2)
    await instances.close()
