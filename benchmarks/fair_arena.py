"""The two workloads that the Virtual Token Counter was measured with, on a simulated worker: how unfair, how fast.

    python benchmarks/fair_arena.py FOLDER [--workload real|overload-multi] [--mode round-robin|kv]

FOLDER holds the published rows of both schedulers (`real-FCFS.jsonl`, `real-VTC.jsonl` and so on): of each request its
client, lengths, arrival, and when its first and last token came. A mocker is calibrated to the rows of first come,
first served; then the same arrivals go through the router to it in virtual time, without and with turns by key.

A prompt counts as served when its first token comes (1 per token), its answer evenly until its last one (2 per token),
for all rows alike. Two figures say how unfair a run is:

gap        the most that the service of two clients differed over any time in which both had requests waiting all along
shortfall  over each 60 s: what each client got less than the best served one, or than it asked for if that is less;
           summed over the clients; the largest and the mean of all seconds
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate import virtual_time
from dynamo.protocols.engine import Tenant
from simulated_server import SimulatedServer

PROMPT, OUTPUT = 1.0, 2.0
WINDOW = 60


class Row(Struct, frozen=True):
    client: str
    prompt: int
    output: int
    sent: float
    first: float
    last: float


class Engine(Struct, frozen=True):
    """A mocker's places, and its times in seconds."""

    places: int
    step: float
    per_prompt: float
    per_token: float
    blocks: int = 1 << 16


class LinearTiming:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prefill(self, new_tokens: int) -> float:
        return self._engine.per_prompt + self._engine.per_token * new_tokens if new_tokens else 0.0

    def decode(self, sequences: int, context_tokens: float) -> float:
        return self._engine.step if sequences else 0.0

    def mixed(self, new_tokens: int, sequences: int, context_tokens: int) -> float:
        return self.prefill(new_tokens) + self.decode(sequences, context_tokens)


def published(path: Path) -> list[Row]:
    rows = json.loads(path.read_text())["result"]["responses"]
    return [
        Row(
            each["adapter_dir"].rpartition("-")[2], each["prompt_len"], each["output_len"], each["req_time"],
            each["req_time"] + each["first_token_latency"], each["req_time"] + each["request_latency"],
        )
        for each in rows
    ]  # fmt: skip


class Service:
    """What each client was served and had waiting, second by second."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.end = int(max(row.last for row in rows)) + 1
        self.served: dict[str, list[float]] = {}
        self.asked: dict[str, list[float]] = {}
        self.waits: dict[str, list[bool]] = {}
        of = defaultdict[str, list[Row]](list)
        for row in rows:
            of[row.client].append(row)
        for client, own in of.items():
            fresh, demand, waits = [0.0] * (self.end + 1), [0.0] * (self.end + 1), [False] * (self.end + 1)
            for row in own:
                fresh[int(row.first)] += PROMPT * row.prompt
                demand[int(row.sent)] += PROMPT * row.prompt + OUTPUT * row.output
                spent = max(row.last - row.first, 1e-9)
                for second in range(int(row.first), int(row.last) + 1):
                    share = (min(row.last, second + 1) - max(row.first, second)) / spent
                    fresh[second] += OUTPUT * row.output * max(0.0, share)
                # Waiting all through the second, so that a client counts as one that waits only while it does.
                for second in range(int(row.sent) + 1, int(row.first)):
                    waits[second] = True
            self.served[client] = list(itertools.accumulate(fresh))
            self.asked[client] = list(itertools.accumulate(demand))
            self.waits[client] = waits

    def gap(self) -> float:
        largest = 0.0
        for one, other in itertools.combinations(self.served, 2):
            lowest = highest = None
            for second in range(self.end):
                if not (self.waits[one][second] and self.waits[other][second]):
                    lowest = highest = None
                    continue
                difference = self.served[one][second] - self.served[other][second]
                lowest = difference if lowest is None else min(lowest, difference)
                highest = difference if highest is None else max(highest, difference)
                largest = max(largest, highest - lowest)
        return largest

    def shortfalls(self) -> list[float]:
        found = []
        for begin in range(self.end - WINDOW):
            end = begin + WINDOW
            got = {client: served[end] - served[begin] for client, served in self.served.items()}
            best = max(got.values())
            total = 0.0
            for client, had in got.items():
                wanted = self.asked[client][end] - self.served[client][begin]
                total += max(0.0, min(best, wanted) - had)
            found.append(total)
        return found


def described(name: str, rows: Sequence[Row]) -> tuple[str, dict[str, float]]:
    service = Service(rows)
    short = service.shortfalls()
    began = min(row.sent for row in rows)
    figures = {
        "seconds": max(row.last for row in rows) - began,
        "TTFT": statistics.mean(row.first - row.sent for row in rows),
        "latency": statistics.mean(row.last - row.sent for row in rows),
        "ITL": statistics.median((row.last - row.first) / (row.output - 1) for row in rows if row.output > 1),
        "running": sum(row.last - row.first for row in rows) / max(row.last for row in rows),
        "gap": service.gap(),
        "shortfall": max(short),
        "mean shortfall": statistics.mean(short),
        "TTFT of the least": _ttft_of_the_least(rows),
    }
    cells = (f"{value:.4f}" if key == "ITL" else f"{value:.1f}" for key, value in figures.items())
    return f"| {name} | {' | '.join(cells)} |", figures


def _ttft_of_the_least(rows: Sequence[Row]) -> float:
    """The mean over those half of the clients that ask for least."""
    asked = defaultdict[str, float](float)
    for row in rows:
        asked[row.client] += PROMPT * row.prompt + OUTPUT * row.output
    least = sorted(asked, key=lambda client: asked[client])[: len(asked) // 2]
    return statistics.mean(row.first - row.sent for row in rows if row.client in least)


async def _run(rows: Sequence[Row], engine: Engine, mode: str, shares: bool) -> list[Row]:
    args = MockerArgs(
        max_num_seqs=engine.places, num_gpu_blocks=engine.blocks, block_size=16, enable_prefix_caching=False,
        max_model_len=4096, max_num_batched_tokens=4096,
    )  # fmt: skip
    clients = {row.client for row in rows}
    tenants = {client: Tenant(client, keys=len(clients)) for client in clients}
    done = list[Row]()

    async with SimulatedServer(args, mode, timing=lambda _: LinearTiming(engine)) as server:
        begun = server.now

        async def ask(row: Row) -> None:
            await asyncio.sleep(max(0.0, begun + row.sent - server.now))
            first, last = await server.ask(row.prompt, row.output, tenants[row.client] if shares else None)
            done.append(Row(row.client, row.prompt, row.output, row.sent, first - begun, last - begun))

        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(ask(row))
    return done


def run(rows: Sequence[Row], engine: Engine, mode: str, *, shares: bool) -> list[Row]:
    return virtual_time.run(_run(rows, engine, mode, shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", default="real", choices=["real", "overload-multi"])
    parser.add_argument("--mode", default="round-robin")
    parser.add_argument("--places", type=int, default=24)
    parser.add_argument("--step", type=float, default=0.0425)
    parser.add_argument("--per-prompt", type=float, default=0.02)
    parser.add_argument("--per-token", type=float, default=0.0001)
    given = parser.parse_args()
    engine = Engine(given.places, given.step, given.per_prompt, given.per_token)
    fcfs, vtc = (published(given.folder / f"{given.workload}-{how}.jsonl") for how in ("FCFS", "VTC"))
    columns = ("s", "TTFT s", "latency s", "ITL s", "running", "gap", "shortfall", "mean", "TTFT of the least")
    print(f"| | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    print(described("published: first come", fcfs)[0])
    print(described("published: VTC", vtc)[0])
    ours, first = described("ours: first come", run(fcfs, engine, given.mode, shares=False))
    print(ours)
    ours, fair = described("ours: turns by key", run(fcfs, engine, given.mode, shares=True))
    print(ours)
    print(f"throughput with turns: {first['seconds'] / fair['seconds']:.3f} of first come, first served")


if __name__ == "__main__":
    main()
