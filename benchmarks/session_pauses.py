"""Blocks kept for agents whose tools run: each way to choose what leaves a full cache, on recorded sessions.

usage: python benchmarks/session_pauses.py SESSIONS [--session-numbers even|odd] [--seeds 0,1] [--sessions 40]
           [--pace 1] [--share 0.25] [--share-tools] [--no-finals] [--ways lru,ttl-60,learned,known]

The caches of four simulated workers together hold `--share` of the working set: all different blocks of the traffic.
`lru` has the block leave that is idle for longest, `ttl-N` keeps what a session used for N seconds, `learned` is
`--router-keep-paused` of a router that has just started, and `known` is the same with every pause known before.
`--no-finals`: nobody says that a session has ended. Virtual time; the same arguments give the same table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.kv.pauses import AGES
from dynamo.lab.simulate import virtual_time
from dynamo.lab.simulate.agents import AgentTraffic, read_agents, with_pauses
from dynamo.lab.simulate.report import FleetReport
from dynamo.lab.simulate.simulation import SimulationConfig, start_simulation
from dynamo.lab.simulate.traffic import SimulatedRequest, scaled
from dynamo.router.config import RoutingConfig
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.sessions.pauses import PauseBook
from dynamo.router.sessions.table import Key
from figures import table

WORKERS = 4


class FixedTime(PauseBook):
    """Every session is kept for as long, whatever it did before."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._fixed = tuple(1.0 if age <= seconds else 0.0 for age in (0.0, *AGES))

    def paused(self, key: Key, kind: str, now: float) -> tuple[float, ...]:
        return self._fixed


def fitting(requests: list[SimulatedRequest], tokens: int) -> list[SimulatedRequest]:
    """Without the sessions, and their sub-agents, that have a longer prompt: it would not fit into a small cache."""
    long = {each.session.partition("/")[0] for each in requests if each.input_tokens + each.output_tokens > tokens}
    return [each for each in requests if each.session.partition("/")[0] not in long]


def working_set(requests: Iterable[SimulatedRequest]) -> int:
    """In blocks."""
    return len({block for each in requests for block in each.block_ids})


def simulated(way: str, requests: list[SimulatedRequest], blocks: int, seed: int, size: int) -> FleetReport:
    config = SimulationConfig(
        workers=WORKERS,
        engine=MockerArgs(block_size=size, num_gpu_blocks=blocks),
        routing=RoutingConfig(mode="kv", keep_paused=way != "lru"),
        pauses="known" if way == "known" else "learned",
        seed=seed,
    )

    async def work() -> FleetReport:
        async with start_simulation(config) as simulation:
            assert isinstance(simulation.router, KvAwareRouter)
            if (pauses := simulation.router.pauses) and way.startswith("ttl-"):
                pauses.book = FixedTime(float(way.removeprefix("ttl-")))
            await simulation.replay(requests)
            return simulation.report(0.0, 0.0)

    return virtual_time.run(work())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--session-numbers", choices=("even", "odd"), default="even")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--longest", type=int, default=200_000, metavar="TOKENS")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--share-tools", action="store_true")
    parser.add_argument("--no-finals", action="store_true")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--ways", default="lru,ttl-60,ttl-300,learned,known")
    args = parser.parse_args()
    rows = []
    for seed in map(int, args.seeds.split(",")):
        asked = AgentTraffic(
            largest=900_000, parity=int(args.session_numbers == "odd"), sessions=args.sessions,
            share_tools=args.share_tools, seed=seed,
        )  # fmt: skip
        requests = list(scaled(with_pauses(read_agents(args.folder, asked)), 1, args.pace))
        if args.no_finals:
            requests = [structs.replace(each, final=False) for each in requests]
        requests = fitting(requests, args.longest)
        blocks = int(working_set(requests) * args.share / WORKERS) * 64 // args.block_size
        for way in args.ways.split(","):
            report = simulated(way, requests, blocks, seed, args.block_size)
            assert report.ttft_ms
            rows.append(
                [
                    f"{seed}", way, f"{blocks:,}", f"{100 * report.prefix_reuse:.2f} %", f"{report.ttft_ms.mean:,.0f}",
                    f"{report.ttft_ms.p99:,.0f}", f"{100 * report.utilisation:.0f} %", f"{report.completed:,}",
                    f"{report.failed}",
                ]
            )  # fmt: skip
            print(" | ".join(rows[-1]), flush=True)
    head = ["seed", "way", "blocks", "cached", "TTFT, ms", "p99", "busy", "requests", "failed"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
