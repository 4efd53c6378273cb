"""What the fleet page shows of planners, tiers, cached prefixes and hand-offs, in Chromium."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.running import SOURCE, running
from ui.conftest import HERE, Servers
from ui.test_accessible import violations
from ui.test_fleet import FleetPage

pytestmark = pytest.mark.ui

HOSTILE = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>\x00\x07\x1b[31m\u202e' + "A" * 5000


@pytest.fixture(scope="module")
def fleet_url(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[str]:
    """A prefill and a decode worker, and one with tiers; a request has been split."""
    place = tmp_path_factory.mktemp("fleet")
    servers = Servers(place, model)
    mocker = [sys.executable, "-m", "dynamo.mocker", "--model-path", "tiny", "--block-size", "16"]
    path = f"{SOURCE}:{HERE.parent}"
    with ExitStack() as stack:
        frontend, url = stack.enter_context(servers.frontend("--router-mode", "kv"))
        worker = [sys.executable, str(HERE / "fleet_worker.py")]
        stack.enter_context(running(place, program=worker, PYTHONPATH=path, MODEL_FOLDER=str(model)))
        for role in ("prefill", "decode"):
            stack.enter_context(running(place, "--disaggregation-mode", role, program=mocker))
        frontend.line_with("prefill worker")
        while not {"tiny", "shelf"} <= {one["id"] for one in ask(url, "/v1/models")["data"]}:
            frontend.line_with("can be served")
        ask(url, "/v1/completions", {"model": "tiny", "prompt": "Once upon a time " * 30, "max_tokens": 2})
        yield url


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture
def fleet(at: Callable[..., Any], fleet_url: str) -> FleetPage:
    return at(fleet_url, FleetPage).open()


def test_what_the_planner_says_is_shown_as_text(fleet: FleetPage) -> None:
    part = fleet.page.locator("#planners-part")
    part.get_by_text("workers go from 1 to 2: <img src=x").first.wait_for()
    assert "It only says what it would do." in part.inner_text()
    assert "␛[31m" in part.inner_text()
    assert part.locator("img").count() == 0
    assert fleet.page.evaluate("window.hurt") is None


def test_tiers_are_shown_with_what_they_are_worth(fleet: FleetPage) -> None:
    disk = fleet.table("tiers").filter(has_text="disk")
    disk.get_by_text("on", exact=True).wait_for()
    for figure in ("3.0 MB of 9.0 MB", "75 %", "768", "2.5 s"):
        assert figure in disk.inner_text()
    assert "off" in fleet.table("tiers").filter(has_text="host").inner_text()


def test_cached_prefixes_are_a_tree_that_is_looked_for_when_it_is_opened(fleet: FleetPage) -> None:
    summary = fleet.page.get_by_text("What is cached where")
    with fleet.page.expect_request("**/fleet/events?prefixes=true"):
        summary.click()
    rows = fleet.table("prefixes").filter(has_text="shelf")
    fleet.until("document.querySelectorAll('#prefixes tbody tr .deeper').length >= 2")
    assert "(disk)" in fleet.table("prefixes").filter(has_text="(disk)").first.inner_text()
    assert rows.count() == 4
    fleet.page.get_by_label("Model").select_option("shelf")
    fleet.until("[...document.querySelectorAll('#prefixes tbody tr')].every((row) => row.innerText.includes('shelf'))")
    with fleet.page.expect_request("**/fleet/events"):
        summary.press("Enter")
    fleet.page.locator("#prefixes").wait_for(state="hidden")


def test_hand_offs_are_shown_with_their_reason_and_times(fleet: FleetPage) -> None:
    row = fleet.table("handoffs").first
    row.get_by_text("split: to measure the costs").wait_for()
    row.get_by_text("done").wait_for()
    assert row.locator("td").last.inner_text() != "–"
    assert "Split 1 (to measure the costs 1)." in fleet.page.locator("#handoffs-note").inner_text()


def test_workers_have_a_version(fleet: FleetPage) -> None:
    from dynamo import __version__

    assert [row.locator("td").last.inner_text() for row in fleet.table("workers").all()] == [__version__] * 3


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_all_parts_pass_the_checks(fleet: FleetPage, theme: Any, width: int) -> None:
    fleet.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    fleet.page.set_viewport_size({"width": width, "height": 900})
    fleet.page.get_by_text("What is cached where").click()
    fleet.until("document.querySelectorAll('#prefixes tbody tr').length > 3")
    for part in ("planners-part", "tiers-part", "handoffs-part"):
        fleet.page.locator(f"#{part}").wait_for()
    assert violations(fleet) == []
    assert fleet.page.evaluate("document.documentElement.scrollWidth") <= width


def hostile_fleet() -> dict[str, Any]:
    """Every text of the stream is hostile, also those that no good server sends."""
    worker = {name: HOSTILE for name in ("worker_id", "model", "endpoint", "role", "health", "address", "version")}
    tier = {"blocks": 1, "bytes": 1, "limit_bytes": 2, "used": True, "hits": 1, "misses": 1, "saved_seconds": 1}
    handoff = {name: HOSTILE for name in ("request_id", "model", "decode", "prefill", "reason", "stage")}
    prefix = {"model": HOSTILE, "role": HOSTILE, "tier": HOSTILE, "workers": [HOSTILE], "parent": "__proto__"}
    numbers = {"begin": 1, "blocks": 2, "tokens": 32, "held": 2, "holders": 3}
    return {
        "version": HOSTILE,
        "running": 0,
        "models": {HOSTILE: {"ready": True, "known_blocks": 1, "splits": {"split": {HOSTILE: 1}}}, "__proto__": {}},
        "workers": {HOSTILE: {**worker, "rank": 0, "requests": 1, "tiers": {HOSTILE: tier}}},
        "requests": {HOSTILE: {"model": HOSTILE, "stage": HOSTILE, "workers": [HOSTILE], "started": 1}},
        "decisions": {"1": {"worker": HOSTILE, "model": HOSTILE, "mode": HOSTILE, "request_id": HOSTILE, "time": 1}},
        "migrations": {HOSTILE: {name: HOSTILE for name in ("request_id", "model", "outcome", "source", "target")}},
        "handoffs": {HOSTILE: {**handoff, "time": 1}},
        "planners": {HOSTILE: {"namespace": HOSTILE, "state": "running", "sentences": [{"time": 1, "text": HOSTILE}]}},
        "prefixes": {HOSTILE: {**prefix, **numbers}},
    }


def test_a_hostile_stream_stays_text(at: Callable[..., Any], fleet_url: str) -> None:
    fleet = at(fleet_url, FleetPage)
    body = f"event: snapshot\ndata: {json.dumps(hostile_fleet())}\n\n"
    fleet.page.route("**/fleet/events*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    fleet.open()
    fleet.page.get_by_text("What is cached where").click()
    fleet.until("document.querySelectorAll('#prefixes tbody tr').length === 1")
    for part in ("workers", "tiers", "handoffs", "prefixes", "planners"):
        assert "&lt;img src=x" in fleet.page.locator(f"#{part}").inner_html(), part
    assert fleet.page.evaluate("window.hurt") is None
    assert fleet.page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "\u202e" not in fleet.page.locator("main").inner_text()
    assert fleet.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
