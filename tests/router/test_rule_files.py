"""A router with a rule from a file: swapped while requests run, and refused where it cannot be used."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from dynamo.protocols.card import WorkerType
from dynamo.router import kv_aware
from dynamo.router.config import RoutingConfig
from dynamo.router.families import LabelledRouter, router_families
from dynamo.runtime import Local
from support.scripted import BLOCK, ScriptedWorker, asking, routing
from support.waiting import until

FIRST = "def rule(prompt, workers):\n    return {}\n"


def write(path: Path, body: str, when: int) -> None:
    """As an editor does: another file in its place. Equal times would hide the change."""
    fresh = path.with_suffix(".new")
    fresh.write_text(FIRST.format(body))
    os.utime(fresh, (when, when))
    fresh.replace(path)


async def test_rules_are_swapped_under_2000_requests_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_aware, "RELOAD_SECONDS", 0.01)
    path, local = tmp_path / "own.py", Local()
    write(path, "0", 1)
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local, rule=str(path)) as side:
        await side.settled(2)
        order = [worker.worker_id for worker in side.kv._ranks.workers]
        served: list[int] = []
        bodies = {2: "1", 3: "float('nan')", 4: "min(0, 1 / 0)", 5: "1"}

        async def ask(count: int) -> None:
            for _ in range(count):
                worker = await side.ask(asking("AB"))
                served.append(worker)

        async def swap() -> None:
            for when, body in bodies.items():
                await until(lambda when=when: len(served) > 350 * (when - 1))
                before = side.kv.rule
                write(path, body, when)
                await until(lambda before=before: side.kv.rule is not before)

        await asyncio.gather(swap(), *(ask(100) for _ in range(20)))
        assert len(served) == 2000
        assert set(served) == {one.id, two.id}
        assert served[:350] == [order[0]] * 350
        assert served[-1] == order[1]
        assert side.router.stats.requests == 2000
        assert side.router.stats.rule_fallbacks[str(path)].keys() == {"nonsense", "raised"}


async def test_a_file_that_becomes_unusable_leaves_the_rule_that_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_aware, "RELOAD_SECONDS", 0.01)
    path, local = tmp_path / "own.py", Local()
    write(path, "1", 1)
    async with ScriptedWorker(local), ScriptedWorker(local), routing(local, rule=str(path)) as side:
        await side.settled(2)
        write(path, "(", 2)
        await until(lambda: "the rule that was loaded before stays" in caplog.text)
        assert await side.ask(asking("AB")) == side.kv._ranks.workers[1].worker_id
        assert [record.levelno for record in caplog.records if "stays" in record.getMessage()] == [logging.WARNING]


async def test_a_rule_that_fails_is_named_in_a_metric(tmp_path: Path) -> None:
    path, local = tmp_path / "own.py", Local()
    write(path, "1 / 0", 1)
    async with ScriptedWorker(local), routing(local, rule=str(path)) as side:
        await side.settled(1)
        await side.ask(asking("AB"))
        families = router_families([LabelledRouter(side.router, "m", 7, WorkerType.Aggregated, BLOCK)])
        family = next(each for each in families if each.name.endswith("rule_fallbacks"))
        (sample,) = family.samples
        assert sample.labels == {"model": "m", "router_id": "7", "rule": str(path), "reason": "raised"}
        assert sample.value == 1


def test_a_rule_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="--router-rule: there is no router rule 'nobodys'"):
        RoutingConfig(mode="kv", rule="nobodys")


def test_a_card_names_a_shipped_rule_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    write(path, "0", 1)
    assert RoutingConfig.from_card({"router_mode": "kv", "router_rule": "lmetric"}).rule == "lmetric"
    with pytest.raises(ValueError, match="and no file"):
        RoutingConfig.from_card({"router_mode": "kv", "router_rule": str(path)})
