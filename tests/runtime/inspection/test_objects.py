"""Objects in memory, by type."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import pytest

from dynamo.runtime.inspection import objects
from dynamo.runtime.inspection.objects import LARGEST, ObjectWalk, object_counts


class Held:
    """What the tests look for."""

    def __init__(self, *others: object) -> None:
        self.others = others


class Meta(type):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        raise AssertionError


class Unhashable(metaclass=Meta):
    def __init__(self) -> None:
        self.itself = self


async def test_what_modules_and_tasks_hold_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "REST_SECONDS", 0.0)
    module = ModuleType("held_by_a_test")
    shared = Held()
    module.__dict__["held"] = [Held(shared), Held(shared)]

    async def waiting(mine: Held) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waiting(Held()))
    await asyncio.sleep(0)
    sys.modules[module.__name__] = module
    try:
        found = await asyncio.to_thread(object_counts, [task], 1_000_000)
    finally:
        del sys.modules[module.__name__]
        task.cancel()
    assert found["types"][f"{__name__}.Held"] == 4
    assert found["objects"] == sum(found["types"].values())
    assert found["complete"]


def test_counting_ends_after_some_time_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LONGEST_SECONDS", -1.0)
    found = object_counts()
    assert not found["complete"]
    assert found["objects"] > 0


def test_entries_of_large_containers_are_counted_and_not_followed() -> None:
    large: list[object] = [[] for _ in range(LARGEST + 1)]
    walk = ObjectWalk([large, ([large],)])
    for _ in walk.steps():
        pass
    assert walk.large == {"builtins.list": LARGEST + 1}
    assert walk.by_type() == {"builtins.list": 2, "builtins.tuple": 1}


def test_a_class_need_not_be_hashable() -> None:
    walk = ObjectWalk([Unhashable()])
    for _ in walk.steps():
        pass
    assert walk.by_type()[f"{__name__}.Unhashable"] == 1


def test_there_is_a_place_to_pause_after_a_few_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "AT_ONCE", 2)
    walk = ObjectWalk([Held() for _ in range(10)])
    steps = iter(walk.steps())
    next(steps)
    assert sum(walk.by_type().values()) == 2
