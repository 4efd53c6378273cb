"""The fleet page in Chromium: what it shows, its controls, and what it does when something fails."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from ui.conftest import Chat, Servers
from ui.test_accessible import violations

pytestmark = pytest.mark.ui

HOSTILE = "<img src=x onerror=alert(1)>"


class FleetPage(Chat):
    def open(self) -> FleetPage:
        self.page.goto(self.url + "/fleet")
        self.page.wait_for_selector("body[data-ready]")
        return self

    def table(self, name: str) -> Any:
        return self.page.locator(f"#{name} tbody tr")


@pytest.fixture
def fleet(at: Callable[..., Any], url: str) -> FleetPage:
    return at(url, FleetPage).open()


@contextmanager
def running_request(url: str, request_id: str) -> Iterator[None]:
    """One that goes on until the end of the block."""
    body = {"model": "talker", "stream": True, "messages": [{"role": "user", "content": "SLOW"}]}
    headers = {"Content-Type": "application/json", "x-request-id": request_id}
    request = urllib.request.Request(f"{url}/v1/chat/completions", msgspec.json.encode(body), headers)
    with urllib.request.urlopen(request) as answer:
        answer.readline()
        yield


def test_workers_requests_and_decisions_are_shown_as_they_change(fleet: FleetPage, url: str) -> None:
    assert fleet.table("workers").count() == 3
    assert "ready" in fleet.table("workers").first.inner_text()
    with running_request(url, HOSTILE):
        row = fleet.table("requests").filter(has_text="<img src=x").first
        row.get_by_text("decode").wait_for()
        assert row.locator("img").count() == 0
    fleet.page.locator("#requests").wait_for(state="hidden")
    decision = fleet.page.locator(".decision").first
    decision.locator("summary").click()
    why = decision.locator(".why")
    assert "the only worker there was" in why.inner_text()
    decision.locator("summary").press("Enter")
    why.wait_for(state="hidden")


def test_one_model_can_be_chosen_and_the_page_can_be_held(at: Callable[..., Any], fleet: FleetPage, url: str) -> None:
    fleet.page.get_by_label("Model").select_option("painter")
    fleet.until("document.querySelectorAll('#workers tbody tr').length === 1")
    fleet.page.get_by_label("Model").select_option("")
    fleet.until("document.querySelectorAll('#workers tbody tr').length === 3")
    fleet.button("Pause").click()
    with running_request(url, "while-held"):
        at(url, FleetPage).open().page.locator("#requests").get_by_text("while-held").wait_for()
        assert fleet.table("requests").count() == 0
        fleet.button("Pause").click()
        fleet.page.locator("#requests").get_by_text("while-held").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_fleet_page_passes_the_checks(fleet: FleetPage, url: str, theme: Any, width: int) -> None:
    fleet.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    fleet.page.set_viewport_size({"width": width, "height": 900})
    with running_request(url, "checked"):
        fleet.page.locator("#requests").get_by_text("checked").wait_for()
        fleet.page.locator(".decision summary").first.click()
        assert violations(fleet) == []
    assert fleet.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_connects_again_when_the_server_is_back(at: Callable[..., Any], servers: Servers) -> None:
    with servers.frontend() as (_, url):
        fleet = at(url, FleetPage)
        fleet.expected = ("net::ERR",)
        fleet.open()
        fleet.page.get_by_text("Live", exact=True).wait_for()
    fleet.page.get_by_text("Connecting again…").wait_for()
    fleet.button("Try now").wait_for()
    with servers.frontend(port=url.rpartition(":")[2]):
        fleet.page.get_by_text("Live", exact=True).wait_for()


def test_the_page_asks_for_the_key_of_an_administrator(at: Callable[..., Any], servers: Servers) -> None:
    with servers.frontend("--admin-key", "root") as (_, url):
        fleet = at(url, FleetPage)
        fleet.expected = ("401", "403")
        fleet.page.goto(url + "/fleet")
        for typed in ("wrong", "root"):
            fleet.page.get_by_label("Key of an administrator").fill(typed)
            fleet.button("Use this key").click()
            if typed == "wrong":
                fleet.until("document.getElementById('key-field').value === ''")
        fleet.page.get_by_text("Live", exact=True).wait_for()
