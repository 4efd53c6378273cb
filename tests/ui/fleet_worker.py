"""A worker with cached prefixes and tiers, and a planner that says hostile things, in one process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from dynamo.kv.hashing import sequence_hashes
from dynamo.kv.messages import Stored, Tier, TierReport
from dynamo.kv.publish.feed import kv_feed
from dynamo.llm import WorkerMetricsPublisher
from dynamo.llm.register import register_card
from dynamo.planner.announce import Announcer
from dynamo.planner.config import PlannerConfig
from dynamo.runtime import DistributedRuntime, dynamo_worker
from support.toys import Scripted, toy_card

SAYS = "workers go from 1 to 2: <img src=x onerror=window.hurt=1>\x1b[31m\u202e"


async def repeat(load: WorkerMetricsPublisher, planner: Announcer) -> None:
    """As real ones do: whoever joins later hears it too."""
    disk = TierReport(
        tier=Tier.Disk, bytes=3_000_000, limit_bytes=9_000_000, hits=3, misses=1, restored_tokens=768, saved_seconds=2.5
    )
    host = TierReport(tier=Tier.Host, used=False, bytes=1000, limit_bytes=2000)
    number = 0
    while True:
        number += 1
        load.publish(kv_used_blocks=number % 7 + 1, kv_total_blocks=64, tiers=[host, disk])
        planner.say(SAYS)
        await asyncio.sleep(0.2)


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    place = runtime.endpoint("dynamo.shelf.generate")
    await register_card(place, toy_card(Path(os.environ["MODEL_FOLDER"]), "shelf"))
    await runtime.start()
    feed, load = kv_feed(place), WorkerMetricsPublisher()
    await feed.ready()
    await load.create_endpoint(place)
    rank = feed.rank()
    for ending in ((10, 11), (20, 21, 22)):
        rank.publish(Stored(sequence_hashes([1, 2, 3, 4, *ending])))
    rank.publish(Stored(sequence_hashes([7, 8])), Tier.Disk)
    await runtime.events.announce()
    runtime.own(repeat(load, Announcer(PlannerConfig(deployment="none", advisory=True), runtime.events)), "the planner")
    print("the fleet's worker is ready", file=sys.stderr, flush=True)
    await place.serve_endpoint(Scripted().generate)


if __name__ == "__main__":
    uvloop.run(worker())
