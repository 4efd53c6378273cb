"""A light user beside a flood of prompts and beside a flood of long answers, with all defaults, in virtual time.

    python benchmarks/fair_floods.py [--asks 300] [--speedup 0.2]

Two mockers of 16 places. One key keeps 64 requests going, the other asks one thing at a time with pauses of random
length; the machine does not count, as nothing waits for it. `step` is the longest that a step of the engine took: while
one runs, nobody is taken into it. The throughput of the flood is compared with that of the same requests without keys.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence

from dynamo.engines.mocker import MockerArgs
from dynamo.engines.mocker.timing import PolynomialTiming, Timing
from dynamo.lab.simulate import virtual_time
from dynamo.protocols.engine import Tenant
from figures import table
from simulated_server import SimulatedServer

FLOODS = {"prompts": (359, 16), "longer prompts": (2000, 16), "answers": (40, 800)}
LIGHT = (100, 16)
AT_ONCE = 64


class Steps:
    """The engine's times, and the longest step that decodes."""

    def __init__(self, args: MockerArgs) -> None:
        self._timing = PolynomialTiming(args)
        self.longest = 0.0

    def prefill(self, new_tokens: int) -> float:
        return self._seen(self._timing.prefill(new_tokens))

    def decode(self, sequences: int, context_tokens: float) -> float:
        return self._seen(self._timing.decode(sequences, context_tokens))

    def mixed(self, new_tokens: int, sequences: int, context_tokens: int) -> float:
        return self._seen(self._timing.mixed(new_tokens, sequences, context_tokens))

    def _seen(self, seconds: float) -> float:
        self.longest = max(self.longest, seconds)
        return seconds


async def _measure(
    mode: str, flood: tuple[int, int] | None, asks: int, speedup: float, keys: int
) -> tuple[list[float], float, float]:
    """Times to the first token of the light user, the flood's answers per second, and the longest step."""
    args = MockerArgs(max_num_seqs=16, speedup_ratio=speedup, block_size=16, max_model_len=16384)
    engines = list[Steps]()

    def timing(args: MockerArgs) -> Timing:
        engines.append(Steps(args))
        return engines[-1]

    pauses, answered = random.Random(3), 0
    heavy, light = (Tenant(name, keys=keys) if keys else None for name in ("heavy", "light"))
    async with SimulatedServer(args, mode, 2, timing=timing, queue_limit=256) as server:

        async def keep_asking(prompt: int, output: int) -> None:
            nonlocal answered
            while True:
                await server.ask(prompt, pauses.randint(output // 2, output), heavy)
                answered += 1

        flooding = [asyncio.create_task(keep_asking(*flood)) for _ in range(AT_ONCE)] if flood else []
        await asyncio.sleep(20)
        begun, before, found = server.now, answered, list[float]()
        for _ in range(asks):
            sent = server.now
            first, _last = await server.ask(*LIGHT, light)
            found.append(first - sent)
            await asyncio.sleep(pauses.uniform(0, 2))
        rate = (answered - before) / (server.now - begun)
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
    return sorted(found), rate, max(each.longest for each in engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=300)
    parser.add_argument("--speedup", type=float, default=0.2)
    given = parser.parse_args()
    rows = []
    for mode in ("round-robin", "kv"):
        alone, _, _ = virtual_time.run(_measure(mode, None, given.asks, given.speedup, 2))
        for name, flood in FLOODS.items():
            without, most, _ = virtual_time.run(_measure(mode, flood, max(10, given.asks // 4), given.speedup, 0))
            beside, rate, step = virtual_time.run(_measure(mode, flood, given.asks, given.speedup, 2))
            rows.append(
                (f"{mode}, {name}", _at(alone), _at(beside),
                 f"{_quantile(beside, 0.5) / _quantile(alone, 0.5):.2f}",
                 f"{(_quantile(beside, 0.99) - _quantile(alone, 0.99)) / step:.2f}", f"{step * 1e3:.0f}",
                 _at(without), f"{rate / most:.3f}")
            )  # fmt: skip
            print(rows[-1], flush=True)
    heads = (
        "flood", "alone p50 / p99, ms", "beside", "median, times", "p99 more, steps", "step, ms",
        "beside, without keys", "throughput of the flood",
    )  # fmt: skip
    print(table(heads, rows))


def _quantile(values: Sequence[float], share: float) -> float:
    return values[int(len(values) * share)]


def _at(values: Sequence[float]) -> str:
    return f"{_quantile(values, 0.5) * 1e3:.0f} / {_quantile(values, 0.99) * 1e3:.0f}"


if __name__ == "__main__":
    main()
