"""`dynamo top`: the fleet as text."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dynamo.cli.top.command import TopError, documents
from dynamo.cli.top.screen import lines
from dynamo.protocols.worker_name import worker_name
from support.toys import Live, Scripted, toy_card, toy_folder

FLEET: dict[str, Any] = {
    "version": "1.2",
    "running": 1,
    "models": {"m": {"ready": True, "running": 1, "waiting": 2, "prompt_blocks": 4, "overlap_blocks": 3}},
    "workers": {
        f"a/b/c/{id}/0": {
            "worker_id": str(id), "rank": 0, "model": "m", "role": "aggregated", "health": "ready",
            "requests": 1, "active_blocks": 5, "total_blocks": 10, "ttft_ms": 12.5,
        }
        for id in (7, 1234567890123)
    },
    "requests": {"r\x1b[2J1": {"model": "m", "stage": "decode", "workers": ["7"], "started": 100.0, "input_tokens": 3,
                               "output_tokens": 4}},
    "decisions": {
        "1": {"request_id": "r1", "model": "m", "mode": "kv", "worker": "7/0", "considered": 2, "prompt_blocks": 4,
              "candidates": [{"worker": "7/0", "cached_blocks": 3.0, "cost": 1.5}]},
        "2": {"request_id": "r2", "model": "m", "mode": "random", "worker": "7/0", "considered": 2, "in_flight": 1},
    },
    "migrations": {},
}  # fmt: skip


def test_all_tables_are_shown_the_newest_decision_first() -> None:
    assert lines(FLEET, 103.0, 200) == [
        "dynamo 1.2   2 of 2 workers ready   1 requests running   2 waiting   75% of prompts cached",
        "",
        "WORKER         MODEL  ROLE        HEALTH  REQUESTS  BLOCKS  PREFILL  CACHED    TTFT  ITL  VERSION",
        "bittern-92713  m      aggregated  ready          1    5/10        -       -  12.5ms    -  -",
        "shark-93029    m      aggregated  ready          1    5/10        -       -  12.5ms    -  -",
        "",
        "REQUEST  MODEL  STAGE   WORKER       IN  OUT  AGE",
        "r?[2J1   m      decode  shark-93029   3    4   3s",
        "",
        "DECISION  MODEL  WORKER       WHY",
        "r2        m      shark-93029  random, of 2, 1 requests there",
        "r1        m      shark-93029  of 2: 3/4 blocks cached, cost 1.5",
    ]


def test_parts_that_a_fleet_may_have_are_shown_without_control_characters() -> None:
    fleet = copy.deepcopy(FLEET)
    fleet["workers"]["a/b/c/7/0"] |= {"version": "1.2\x1b[2J", "tiers": {"disk": {
        "blocks": 3, "used": False, "bytes": 5, "limit_bytes": 9, "hits": 1, "misses": 3, "saved_seconds": 1.5,
    }}}  # fmt: skip
    fleet["planners"] = {"p": {"state": "running", "sentences": [{"text": "old"}, {"text": "workers stay\n\x1b[2J"}]}}
    fleet["handoffs"] = {"1": {
        "time": 1, "request_id": "r1", "decode": "7", "prefill": "8", "reason": "worth", "stage": "done",
        "uncached_tokens": 64, "prefill_ms": 5.0, "handoff_ms": 1.0,
    }}  # fmt: skip
    fleet["sessions"] = {"-/ab": {
        "time": 1, "id": "s\x1b[2J", "model": "m", "turns": 2, "prompt_tokens": 90, "worker_id": "7", "pause_s": 2.5,
        "cached_percent": [0, 96],
    }}  # fmt: skip
    row = {"model": "m", "begin": 0, "blocks": 2, "tokens": 32, "held": 4, "holders": 2}
    below = row | {"begin": 2, "held": 1, "parent": "m/a/d/aaaaaaaa11"}
    fleet["prefixes"] = {"m/a/d/bbbbbbbb22": below, "m/a/d/aaaaaaaa11": row}
    text = "\n".join(lines(fleet, 103.0, 200))
    assert "\x1b" not in text
    assert "planner: workers stay??[2J" in text
    for line in (
        "shark-93029  disk  off        3    5/9    25%         -   1.5s",
        f"r1        {worker_name(8)}  shark-93029  split: worth  done       64    5.0ms     1.0ms",
        "s?[2J    m      shark-93029      2   2.5s      90  0% 96%",
        "aaaaaaaa    m         0      32     4        2",
        "  bbbbbbbb  m        32      32     1        2",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize("height", [3, 5, 8, 10, 24, 60])
def test_many_workers_fit_into_the_terminal(height: int) -> None:
    fleet = copy.deepcopy(FLEET)
    row = fleet["workers"]["a/b/c/7/0"]
    fleet["workers"] = {f"a/b/c/{id}/0": row | {"worker_id": str(id)} for id in range(256)}
    shown = lines(fleet, 103.0, 60, height)
    assert len(shown) <= height
    assert max(map(len, shown)) <= 60


async def test_the_stream_of_a_server_is_followed(tmp_path: Any) -> None:
    async with Live() as live:
        stream = documents(live.url, None)
        assert (await anext(stream))["workers"] == {}
        await live.serve(Scripted().generate, toy_card(toy_folder(tmp_path), "late"))
        while not (fleet := await anext(stream))["workers"]:
            pass
        assert any("late" in line for line in lines(fleet, 0.0, 200))
        await stream.aclose()


async def test_a_server_that_refuses_is_named() -> None:
    async with Live(admin_keys=("root",)) as live:
        with pytest.raises(TopError, match="DYN_ADMIN_KEY"):
            await anext(documents(live.url, "wrong"))
