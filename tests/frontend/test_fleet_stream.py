"""The stream of the fleet: what is in it, who may have it, and that it costs nothing while nobody looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamo import __version__
from dynamo.api.answers.sse import EventStream
from dynamo.frontend.fleet import apply_merge_patch
from dynamo.frontend.fleet import stream as fleet_stream
from dynamo.frontend.fleet.stream import FleetStream
from dynamo.frontend.fleet.view import FleetView
from dynamo.kv.hashing import sequence_hashes
from dynamo.kv.messages import Stored, Tier, TierReport
from dynamo.kv.publish.feed import kv_feed
from dynamo.llm import WorkerMetricsPublisher
from dynamo.planner.announce import Announcer
from dynamo.planner.config import PlannerConfig
from dynamo.router import RoutingConfig
from dynamo.runtime.events.memory import MemoryEventPlane
from support.toys import Live, Scripted, toy_card, toy_folder
from support.waiting import until

CHAT = {"model": "org/toy", "messages": [{"role": "user", "content": "hello there, fleet"}]}


class Viewer:
    """Reads the stream as the page does."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.document: dict[str, Any] = {}
        self.names: list[str] = []

    async def read(self) -> bool:
        """One event; False at the end."""
        name, line = "", await self._answer.content.readline()
        while line not in (b"\n", b""):
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                data = json.loads(line[6:])
                if name == "snapshot":
                    self.document = data
                else:
                    apply_merge_patch(self.document, data)
            line = await self._answer.content.readline()
        if name:  # else it was a comment
            self.names.append(name)
        return line != b""

    async def until(self, holds: Callable[[dict[str, Any]], Any]) -> Any:
        """Read on until it is true of the document."""
        while not (found := holds(self.document)):
            assert await self.read()
        return found


@asynccontextmanager
async def viewing(live: Live, query: str = "") -> AsyncIterator[Viewer]:
    async with live.http.get(f"/fleet/events{query}") as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        viewer = Viewer(answer)
        await viewer.read()
        yield viewer


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_stream, "INTERVAL_SECONDS", 0.02)


async def test_the_snapshot_has_the_models_and_their_workers(live: Live, toy: Scripted) -> None:
    async with viewing(live) as viewer:
        assert viewer.names == ["snapshot"]
        [(key, worker)] = viewer.document["workers"].items()
        assert key == f"{worker['endpoint']}/{worker['worker_id']}/0"
        assert (worker["model"], worker["role"], worker["health"], worker["requests"]) == (
            "org/toy", "aggregated", "ready", 0,
        )  # fmt: skip
        assert worker["version"] == __version__
        assert viewer.document["models"]["org/toy"]["ready"] is True


async def test_a_worker_that_joins_is_a_change(live: Live, folder: Path) -> None:
    async with viewing(live) as viewer:
        assert viewer.document["workers"] == {}
        await live.serve(Scripted().generate, toy_card(folder, "late"))
        await viewer.until(lambda fleet: fleet["workers"] and fleet["models"]["late"]["ready"])
        assert set(viewer.names[1:]) == {"patch"}


async def test_a_request_is_shown_while_it_runs_and_the_decision_stays(live: Live, folder: Path) -> None:
    go_on = asyncio.Event()

    async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"token_ids": [5]}
        await go_on.wait()
        yield {"token_ids": [6], "finish_reason": "stop"}

    await live.serve(generate, toy_card(folder, "org/toy"))
    async with viewing(live) as viewer:
        asking = asyncio.create_task(live.post("/v1/chat/completions", CHAT, **{"x-request-id": "mine"}))
        row = await viewer.until(lambda fleet: (row := fleet["requests"].get("mine")) and row["output_tokens"] and row)
        [worker] = viewer.document["workers"].values()
        assert (row["stage"], row["workers"], worker["requests"]) == ("decode", [worker["worker_id"]], 1)
        go_on.set()
        assert (await asking)[0] == 200
        await viewer.until(lambda fleet: not fleet["requests"])
        [decision] = viewer.document["decisions"].values()
        assert (decision["worker"], decision["considered"]) == (f"{worker['worker_id']}/0", 1)
        await viewer.until(lambda fleet: next(iter(fleet["workers"].values())).get("ttft_ms"))


async def test_a_kv_aware_decision_is_shown_with_its_candidates_and_costs(folder: Path) -> None:
    async with Live(router=RoutingConfig(mode="kv")) as live:
        await live.serve(Scripted().generate, toy_card(folder, "org/toy"))
        async with viewing(live) as viewer:
            assert (await live.post("/v1/chat/completions", CHAT))[0] == 200
            [decision] = (await viewer.until(lambda fleet: fleet["decisions"])).values()
            [candidate] = decision["candidates"]
            parts = [candidate[name] for name in ("work", "waiting", "crowding", "spreading")]
            assert candidate["worker"] == decision["worker"]
            assert sum(parts) == pytest.approx(candidate["cost"], abs=0.05)


async def test_cached_prefixes_are_there_for_those_who_ask(folder: Path) -> None:
    async with Live(router=RoutingConfig(mode="kv")) as live:
        runtime = await live.serve(Scripted().generate, toy_card(folder, "org/toy"))
        feed = kv_feed(runtime.endpoint("toy.backend.generate"))
        await feed.ready()
        hashes = sequence_hashes([1, 2, 3])
        feed.rank().publish(Stored(hashes))
        async with viewing(live) as viewer:
            await viewer.until(lambda fleet: fleet["models"]["org/toy"]["known_blocks"] == 3)
            assert viewer.document["prefixes"] == {}
        async with viewing(live, "?prefixes=true") as viewer:
            [(key, row)] = (await viewer.until(lambda fleet: fleet["prefixes"])).items()
            assert key == f"org/toy/aggregated/device/{hashes[2]:016x}"
            assert (row["blocks"], row["held"], row["holders"]) == (3, 3, 1)
            assert row["workers"] == [f"{runtime.instance_id}/0"]
        async with viewing(live) as viewer:
            assert viewer.document["prefixes"] == {}


async def test_tiers_are_shown_with_what_their_worker_says_of_them(folder: Path) -> None:
    async with Live(router=RoutingConfig(mode="kv")) as live:
        runtime = await live.serve(Scripted().generate, toy_card(folder, "org/toy"))
        place = runtime.endpoint("toy.backend.generate")
        feed, load = kv_feed(place), WorkerMetricsPublisher()
        await feed.ready()
        await load.create_endpoint(place)
        feed.rank().publish(Stored(sequence_hashes([1, 2])), Tier.Disk)
        report = TierReport(tier=Tier.Disk, used=False, bytes=5, limit_bytes=9, hits=1, misses=2, saved_seconds=0.5)
        async with viewing(live) as viewer:
            tier = await viewer.until(lambda fleet: next(iter(fleet["workers"].values())).get("tiers"))
            assert tier == {"disk": {"blocks": 2}}
            figures = 0
            while "used" not in tier["disk"]:
                # A report may be sent before the frontend follows them.
                figures += 1
                load.publish(kv_used_blocks=figures, tiers=[report])
                assert await viewer.read()
                tier = next(iter(viewer.document["workers"].values()))["tiers"]
            assert tier["disk"] == {
                "blocks": 2, "bytes": 5, "limit_bytes": 9, "used": False,
                "hits": 1, "misses": 2, "restored_tokens": 0, "saved_seconds": 0.5,
            }  # fmt: skip


async def test_planners_are_shown_with_what_they_say(live: Live, toy: Scripted) -> None:
    planner = Announcer(PlannerConfig(deployment="none"), MemoryEventPlane(live.local.bus))
    async with viewing(live) as viewer:
        while not viewer.document["planners"]:
            planner.say("workers stay at 1: all is well")
            assert await viewer.read()
        planner.say("<b>workers go from 1 to 2</b>\x1b[31m")
        [row] = (await viewer.until(lambda fleet: has_sentences(fleet["planners"], 2) and fleet["planners"])).values()
        assert (row["namespace"], row["advisory"], row["state"]) == ("dynamo", False, "running")
        assert [one["text"] for one in row["sentences"]][1] == "<b>workers go from 1 to 2</b>\x1b[31m"


def has_sentences(planners: dict[str, Any], count: int) -> bool:
    return all(len(row["sentences"]) == count for row in planners.values())


async def test_nothing_is_computed_without_a_viewer(live: Live, toy: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[FleetView] = []
    document = FleetView.document

    def counted(view: FleetView) -> dict[str, Any]:
        built.append(view)
        return document(view)

    monkeypatch.setattr(FleetView, "document", counted)
    await live.post("/v1/chat/completions", CHAT)
    assert not built
    async with viewing(live), viewing(live):
        count = len(built)
        await until(lambda: len(built) > count)
    fleet = live.server._frontend.fleet
    await until(lambda: fleet._timer is None)
    count = len(built)
    await live.post("/v1/chat/completions", CHAT)
    assert len(built) == count


async def test_the_stream_needs_the_administrators_key() -> None:
    async with Live(api_keys=("user",), admin_keys=("root",)) as live:
        for key, expected in ((None, 401), ("user", 403), ("root", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with live.http.get("/fleet/events", headers=headers) as answer:
                assert answer.status == expected


async def test_a_head_request_gets_no_stream(live: Live) -> None:
    async with live.http.head("/fleet/events") as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")


async def test_a_server_that_drains_ends_the_stream(live: Live) -> None:
    async with viewing(live) as viewer:
        live.server._frontend.draining = True
        while await viewer.read():
            pass


class Reader(EventStream):
    """A viewer with this much unread."""

    __slots__ = ("backlog", "events")

    def __init__(self) -> None:
        super().__init__()
        self.backlog = 0
        self.events: list[bytes] = []

    @property
    def unsent(self) -> int:
        return self.backlog

    def write(self, data: bytes) -> None:
        self.events.append(data.partition(b"\n")[0])


class Counting:
    """A view whose document changes each time."""

    def __init__(self) -> None:
        self.built = 0

    def document(self) -> dict[str, Any]:
        self.built += 1
        return {"built": self.built}

    def open(self) -> None: ...

    def forget(self) -> None: ...

    scan_seconds = 0.0


async def test_a_viewer_that_does_not_read_gets_a_snapshot_later_and_others_miss_nothing() -> None:
    view = Counting()
    fleet = FleetStream(view, lambda: False)  # type: ignore[arg-type]
    slow, quick = Reader(), Reader()
    with fleet.viewer(slow), fleet.viewer(quick):
        slow.backlog = fleet_stream.MAX_UNSENT + 1
        await until(lambda: len(quick.events) >= 4)
        assert slow.events == [b"event: snapshot"]
        slow.backlog = 0
        await until(lambda: len(slow.events) >= 3)
        assert slow.events[:3] == [b"event: snapshot", b"event: snapshot", b"event: patch"]
    assert quick.events == [b"event: snapshot", *[b"event: patch"] * (view.built - 1)]


async def test_keys_that_share_the_workers_are_shown_with_how_far_apart_they_are(toy: Scripted, tmp_path: Path) -> None:
    async with Live(api_keys=("first", "second"), admin_keys=("root",)) as live:
        await live.serve(toy.generate, toy_card(toy_folder(tmp_path), "org/toy"))
        for key in ("first", "second"):
            headers = {"Authorization": f"Bearer {key}"}
            async with live.http.post("/v1/chat/completions", json=CHAT, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
        async with live.http.get("/fleet/events", headers={"Authorization": "Bearer root"}) as answer:
            viewer = Viewer(answer)
            await viewer.read()
            fairness = await viewer.until(lambda shown: shown["models"]["org/toy"].get("fairness"))
        assert fairness["gap"] == 0, "nobody waits"
        assert len(fairness["keys"]) == 2
        assert all(
            row["service"] > 0 and not row["waiting"] and not row["running"] for row in fairness["keys"].values()
        )
