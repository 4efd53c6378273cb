"""What the fleet page shows of workers that are lost, their details, and the orders of an administrator."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.running import Process, running
from ui.conftest import Servers
from ui.test_accessible import violations
from ui.test_fleet import FleetPage

pytestmark = pytest.mark.ui

MOCKER = [sys.executable, "-m", "dynamo.mocker", "--model-path", "tiny", "--block-size", "16"]


@pytest.fixture
def pair(servers: Servers) -> Iterator[tuple[str, dict[str, Process]]]:
    """A server and two mockers, by their names."""
    with ExitStack() as stack:
        frontend, url = stack.enter_context(servers.frontend())
        workers = {}
        for _ in range(2):
            process = stack.enter_context(running(servers.place, program=MOCKER))
            workers[process.line_with("serves 'tiny'").split()[-1]] = process
        frontend.line_with("can be served")
        yield url, workers


def test_a_worker_is_found_by_its_name_drained_resumed_and_lost(
    at: Callable[..., Any], pair: tuple[str, dict[str, Process]]
) -> None:
    url, workers = pair
    one, two = workers
    fleet = at(url, FleetPage).open()
    row = fleet.table("workers").filter(has_text=one)
    row.wait_for()
    fleet.page.get_by_label("Find workers").fill(one)
    fleet.until("document.querySelectorAll('#workers tbody tr').length === 1")

    fleet.button(one, within=row).click()
    detail = fleet.page.get_by_role("dialog", name=f"Worker {one}")
    facts = detail.locator("#worker-facts").inner_text()
    for fact in ("tiny", "mocker", str(workers[one].popen.pid), "Up for"):
        assert fact in facts
    assert violations(fleet) == []
    fleet.button("Drain", within=detail).click()
    detail.get_by_text("It gets no new requests.").wait_for()
    fleet.button("Resume", within=detail).wait_for()
    row.get_by_text("draining").wait_for()
    fleet.button("Resume", within=detail).click()
    row.get_by_text("ready").wait_for()
    fleet.button("Close worker", within=detail).click()

    # A connection to it is what tells a lost worker from one that was never reached.
    workers[one].popen.send_signal(signal.SIGKILL)
    row.get_by_text("lost at ").wait_for()
    event = fleet.table("events").filter(has_text="lost")
    assert one in event.inner_text()
    fleet.page.get_by_label("Find workers").fill("")
    fleet.page.locator("#history-part").wait_for()
    assert fleet.page.locator(".chart").count() == 4

    fleet.button(two, within=fleet.table("workers").filter(has_text=two)).click()
    detail = fleet.page.get_by_role("dialog", name=f"Worker {two}")
    fleet.button("Remove", within=detail).click()
    detail.get_by_text("Click Remove again").wait_for()
    assert workers[two].popen.poll() is None
    fleet.button("Remove", within=detail).click()
    assert workers[two].wait() == 0
    fleet.table("workers").filter(has_text=two).get_by_text("left at ").wait_for()


@pytest.mark.parametrize("width", [320, 390])
def test_no_table_is_cut_on_a_phone(at: Callable[..., Any], pair: tuple[str, dict[str, Process]], width: int) -> None:
    url, workers = pair
    fleet = at(url, FleetPage)
    fleet.page.set_viewport_size({"width": width, "height": 800})
    fleet.open()
    fleet.table("workers").filter(has_text=next(iter(workers))).wait_for()
    wide = "[...document.querySelectorAll('.wide-table')].filter((box) => box.scrollWidth > box.clientWidth + 1).length"
    assert fleet.page.evaluate(wide) == 0
    assert fleet.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(fleet) == []
