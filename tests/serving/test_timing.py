"""The parts of a request's time add up, and each is where its cause was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dynamo.router.delivery.history import DeliveryHistory, Migration
from dynamo.serving.timing import TimingParts, timing_parts
from support.serving import serving

SPAN = st.floats(0, 100)


def history(
    preprocess: float, queue: float, route: float, prefill: float, lost: float, decode: float, *, at_start: bool
) -> tuple[float, DeliveryHistory]:
    """A request that began at 1000 with parts of these lengths, and when it ended."""
    told = DeliveryHistory()
    told.asked_at = 1000 + preprocess
    told.waited = queue
    told.placed_at = told.asked_at + queue + route
    told.first_output_time = told.placed_at + prefill + (lost if at_start else 0)
    ended = told.first_output_time + decode + (0 if at_start else lost)
    if lost:
        moved = told.first_output_time if at_start else told.first_output_time + decode / 2 + lost
        told.finished_migrations = (Migration("ongoing_request", "success", lost, ended_at=moved),)
    return ended, told


@given(SPAN, SPAN, SPAN, SPAN, SPAN, SPAN, st.booleans())
def test_each_part_is_as_long_as_what_caused_it(
    preprocess: float, queue: float, route: float, prefill: float, lost: float, decode: float, at_start: bool
) -> None:
    ended, told = history(preprocess, queue, route, prefill, lost, decode, at_start=at_start)
    parts = timing_parts(1000, ended, told)
    made = TimingParts(*(1000 * part for part in (preprocess, queue, route, prefill, lost, decode)))
    assert structs.astuple(parts) == pytest.approx(structs.astuple(made), abs=1e-6)
    assert sum(structs.astuple(parts)) == pytest.approx(1000 * (ended - 1000), abs=1e-6)


@pytest.mark.parametrize("reached", range(4))
def test_the_parts_of_a_request_that_ended_early_add_up_too(reached: int) -> None:
    told = DeliveryHistory()
    for name, at in [("asked_at", 1001.0), ("placed_at", 1003.0), ("first_output_time", 1006.0)][:reached]:
        setattr(told, name, at)
    parts = timing_parts(1000, 1010, told)
    assert sum(structs.astuple(parts)) == pytest.approx(10_000)
    assert min(structs.astuple(parts)) >= 0


async def test_a_client_gets_the_parts_and_a_header(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        answer = await served.chat(nvext={"extra_fields": ["timing"]})
        timing = (await answer.json())["nvext"]["timing"]
        assert sum(timing["parts"].values()) == pytest.approx(timing["total_time_ms"])
        names = [part.partition(";")[0] for part in answer.headers["Server-Timing"].split(", ")]
        assert names == ["dynamo", "engine"]
        assert "Server-Timing" not in (await served.http.get(f"{served.url}/v1/models")).headers
