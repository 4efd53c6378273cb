"""What a block in a slower tier is worth: what its worker measured, else what the configuration says."""

from __future__ import annotations

import msgspec

from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import KV_METRICS, ActiveLoad, RouterEvent, Stored, Tier, subject
from dynamo.runtime import Local
from support.scripted import PLACE, RouterSide, ScriptedWorker, asking, prompt, routing
from support.waiting import until

PROMPT = "ABCDEFGH"


def hold(side: RouterSide, worker: ScriptedWorker, tier: Tier, block_size: int) -> None:
    hashes = prompt_hashes(prompt(PROMPT), block_size)
    side.kv.index.apply(RouterEvent(worker_id=worker.id, event_id=0, tier=tier, data=Stored(hashes)))


def cached(side: RouterSide, worker: ScriptedWorker) -> float:
    (candidate,) = [one for one in side.kv.peek(asking(PROMPT)).candidates() if one.worker.worker_id == worker.id]
    return candidate.cached_blocks


async def test_weights_that_workers_measured_replace_the_defaults() -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local) as side:
        await side.settled(2)
        size = side.kv._block_size
        blocks = len(prompt_hashes(prompt(PROMPT), size))
        hold(side, one, Tier.Host, size)
        hold(side, two, Tier.Disk, size)
        assert (cached(side, one), cached(side, two)) == (0.75 * blocks, 0.25 * blocks)

        def reported() -> bool:
            for worker, load in ((one, {"host_weight": 0.5}), (two, {"disk_weight": 1.0})):
                data = msgspec.msgpack.encode(ActiveLoad(worker_id=worker.id, **load))  # type: ignore[arg-type]
                worker.runtime.events.publish(subject(PLACE, KV_METRICS), data)
            return (cached(side, one), cached(side, two)) == (0.5 * blocks, 1.0 * blocks)

        await until(reported)


async def test_weights_of_the_configuration_stay() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, host_weight=0.9) as side:
        await side.settled(1)
        size = side.kv._block_size
        hold(side, worker, Tier.Host, size)
        blocks = len(prompt_hashes(prompt(PROMPT), size))
        assert cached(side, worker) == int(0.9 * blocks * size) / size
        assert side.kv._reported is None
