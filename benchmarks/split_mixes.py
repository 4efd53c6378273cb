"""For which traffic do prefill and decode workers beat as many aggregated ones? Simulated, in virtual time.

usage: python benchmarks/split_mixes.py [--workers 100] [--seconds 30] [--mix NAME]… [--seed WORD] [--bandwidth GB/S]

Short requests run beside long prompts. Every mix is simulated four times with the same arrivals: on aggregated
workers, on half as many prefill and decode workers with the rule that measures, and on these with every prompt split,
and with none.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import sys
from collections.abc import Iterator

from msgspec import Struct, structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate import virtual_time
from dynamo.lab.simulate.simulation import Simulation, start_simulation
from dynamo.router.config import RoutingConfig
from dynamo.settings.router import HandoffConfig
from dynamo.simulate import FleetReport, SimulatedRequest, SimulationConfig
from figures import table


class Requests(Struct, frozen=True):
    """One kind of request: its tokens, and how many arrive each second per worker of the fleet."""

    input_tokens: int
    output_tokens: int
    rate: float

    def arriving(self, kind: str, workers: int, seconds: float, seed: str) -> Iterator[SimulatedRequest]:
        chance, now, number = random.Random(kind + seed), 0.0, 0
        while (now := now + chance.expovariate(self.rate * workers)) < seconds:
            number += 1
            yield SimulatedRequest(
                at=now, input_tokens=self.input_tokens, output_tokens=self.output_tokens, label=f"{kind} {number}"
            )


class Mix(Struct, frozen=True):
    short: Requests
    long: Requests
    bandwidth: float = 64.0


MIXES = {
    "8k prompts": Mix(Requests(128, 128, 2.0), Requests(8192, 64, 1.5)),
    "8k prompts, rare": Mix(Requests(128, 128, 2.0), Requests(8192, 64, 0.2)),
    "2k prompts": Mix(Requests(128, 128, 2.0), Requests(2048, 64, 4.0)),
    "512-token prompts": Mix(Requests(128, 128, 2.0), Requests(512, 64, 6.0)),
    "8k prompts, long answers": Mix(Requests(128, 512, 2.0), Requests(8192, 512, 1.0)),
    "8k prompts, more than half the workers can compute": Mix(Requests(128, 128, 2.0), Requests(8192, 64, 3.5)),
    "8k prompts, 2 GB/s": Mix(Requests(128, 128, 2.0), Requests(8192, 64, 1.5), 2.0),
}
ALWAYS, NEVER = HandoffConfig(policy="always"), HandoffConfig(policy="never")


def run(
    mix: Mix, workers: int, seconds: float, split: HandoffConfig | None, seed: str = ""
) -> tuple[FleetReport, FleetReport]:
    """Reports on the short and on the long requests; another seed gives other arrivals."""
    engine = MockerArgs(num_gpu_blocks=16384, kv_transfer_bandwidth=mix.bandwidth)
    config = SimulationConfig(workers=workers, engine=engine, routing=RoutingConfig(mode="kv"))
    if split is not None:
        routing = structs.replace(config.routing, conditional_disagg_config=split)
        config = structs.replace(config, workers=workers // 2, prefill_workers=workers // 2, routing=routing)

    async def work() -> tuple[FleetReport, FleetReport]:
        async with start_simulation(config) as short:
            long = Simulation(config, short.fleet, short.router, short.handoffs)
            begun = asyncio.get_running_loop().time()
            await asyncio.gather(
                short.replay(mix.short.arriving("short", workers, seconds, seed)),
                long.replay(mix.long.arriving("long", workers, seconds, seed)),
            )
            return short.report(begun, 0.0), long.report(begun, 0.0)

    random.seed(f"1{seed}" if seed else 1)
    return virtual_time.run(work())


def row(name: str, fleet: str, short: FleetReport, long: FleetReport) -> list[str]:
    assert short.itl_ms
    assert short.ttft_ms
    assert long.ttft_ms
    assert not short.failed + long.failed
    remote = sum(count for why, count in short.splits.items() if why.startswith("remote"))
    reasons = heapq.nlargest(2, short.splits.items(), key=lambda each: each[1])
    return [
        name, fleet, f"{short.itl_ms.p99:.1f}", f"{short.ttft_ms.mean:.0f}", f"{short.ttft_ms.p99:.0f}",
        f"{long.ttft_ms.mean:.0f}", f"{long.ttft_ms.p99:.0f}",
        f"{100 * remote / max(1, sum(short.splits.values())):.0f} %" if short.splits else "",
        ", ".join(f"{count} {why}" for why, count in reasons),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--mix", action="append", choices=MIXES, dest="mixes")
    parser.add_argument("--seed", default="", help="of other arrivals")
    parser.add_argument("--bandwidth", type=float, help="of every mix, in GB/s, instead of its own")
    asked = parser.parse_args()
    half = asked.workers // 2
    fleets = {
        f"{asked.workers} aggregated": None,
        f"{half} + {half}": HandoffConfig(),
        f"{half} + {half}, always": ALWAYS,
        f"{half} + {half}, never": NEVER,
    }
    head = ["mix", "workers", "ITL p99 of short, ms", "TTFT of short, ms", "p99", "TTFT of long, ms", "p99", "split",
            "reasons"]  # fmt: skip
    rows = []
    for name in asked.mixes or MIXES:
        for fleet, split in fleets.items():
            mix = MIXES[name]
            if asked.bandwidth:
                mix = structs.replace(mix, bandwidth=asked.bandwidth)
            rows.append(row(name, fleet, *run(mix, asked.workers, asked.seconds, split, asked.seed)))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(table(head, rows))


if __name__ == "__main__":
    main()
