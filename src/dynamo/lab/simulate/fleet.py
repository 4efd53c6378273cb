"""Simulated workers: mockers that register, publish and serve like any other worker, inside this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Literal

from msgspec import structs

from dynamo.engines.mocker import MockerArgs, MockerEngine, MockVocabulary
from dynamo.engines.mocker.profile import timing_for
from dynamo.engines.mocker.timing import Timing
from dynamo.handoff.pairing import TRANSFER
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType, WorkerType
from dynamo.runtime import DistributedRuntime, Endpoint, EndpointId, RuntimeConfig
from dynamo.runtime.network import Local
from dynamo.worker.life import publish_and_serve

MODEL = "simulated"
ENDPOINT = EndpointId("simulated", "backend", "generate")
PREFILL_ENDPOINT = EndpointId("simulated", "prefill", "generate")

_ONE_WORD = MockVocabulary(1000, 1001)
"""Nobody reads the answers: how long they are is all that counts."""

Role = Literal["agg", "prefill", "decode"]


class VariableTiming:
    """A worker's times, which may be stretched while it runs."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.factor = 1.0

    def prefill(self, new_tokens: int) -> float:
        return self.factor * self._timing.prefill(new_tokens)

    def decode(self, sequences: int, context_tokens: float) -> float:
        return self.factor * self._timing.decode(sequences, context_tokens)

    def mixed(self, new_tokens: int, sequences: int, context_tokens: int) -> float:
        return self.factor * self._timing.mixed(new_tokens, sequences, context_tokens)


class SimulatedWorker:
    """One worker from `start` to `drain` or `kill`."""

    def __init__(self, config: RuntimeConfig, local: Local, args: MockerArgs, timing: Timing) -> None:
        self.runtime = DistributedRuntime(config=config, local=local)
        self.timing = VariableTiming(timing)
        self.engine = MockerEngine(args, vocabulary=_ONE_WORD, timing=self.timing, coarse=True)
        self.started_at = self.ended_at = 0.0
        self._args = args
        self._serving: asyncio.Task[None] | None = None

    @property
    def instance_id(self) -> int:
        return self.runtime.instance_id

    @property
    def prefills(self) -> bool:
        """Whether it computes prompts for others."""
        return self._args.disaggregation_mode == "prefill"

    async def start(self) -> None:
        """Return once a router can find it."""
        self.started_at = asyncio.get_running_loop().time()
        found = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(found))
        waiting = asyncio.create_task(found.wait())
        await asyncio.wait({waiting, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            await self._serving

    async def drain(self) -> None:
        """Leave after the running requests have ended."""
        await self._end(drain=True)

    async def kill(self) -> None:
        """Fail the running requests, as a worker that dies does."""
        await self._end(drain=False)

    async def _end(self, *, drain: bool) -> None:
        if self._serving is None or self.runtime.is_shutting_down:
            return
        self.runtime.shutdown(drain=drain)
        if not drain:
            await self.engine.close()
        await self._serving
        self.ended_at = asyncio.get_running_loop().time()

    async def _serve(self, found: asyncio.Event) -> None:
        try:
            await self.engine.start()
            endpoint = PREFILL_ENDPOINT if self.prefills else ENDPOINT
            card = _card(self._args, self.engine.transfer)
            async with publish_and_serve(Endpoint(self.runtime, endpoint), self.engine, card):
                found.set()
                await self.runtime.wait_for_shutdown()
            await self.engine.close()
        finally:
            await self.runtime.close()


class SimulatedFleet:
    """The workers of one simulation, which join and leave while it runs."""

    def __init__(
        self,
        args: MockerArgs,
        *,
        prefill_args: MockerArgs | None = None,
        timing: Callable[[MockerArgs], Timing] | None = None,
    ) -> None:
        self._prefill_args = structs.replace(prefill_args or args, startup_time=None)
        self.args = structs.replace(args, startup_time=None)
        self.startup_time = args.startup_time or 0.0
        self.local = Local()
        self.config = structs.replace(RuntimeConfig.in_process({}), graceful_shutdown_timeout=1e9)
        self.workers: list[SimulatedWorker] = []
        self.request_numbers = count(1)
        self._timing = timing or timing_for

    async def join(self, count: int = 1, role: Role | None = None) -> None:
        """Add workers, of the role that the arguments name if it is not given; they are ready when this returns."""
        args = self._prefill_args if role == "prefill" else self.args
        if role is not None:
            args = structs.replace(args, disaggregation_mode=role)
        workers = [SimulatedWorker(self.config, self.local, args, self._timing(args)) for _ in range(count)]
        for worker in workers:
            await worker.start()
        self.workers += workers

    async def close(self) -> None:
        for worker in self.workers:
            await worker.kill()

    def worker_seconds(self, since: float, until: float) -> float:
        """The time that workers were there, added up."""
        return sum((worker.ended_at or until) - max(since, worker.started_at) for worker in self.workers)

    def restored_tokens(self) -> dict[str, int]:
        """By tier, of all workers."""
        found = Counter[str]()
        for worker in self.workers:
            for load in worker.engine.load():
                found.update({each.tier.value: each.restored_tokens for each in load.tiers})
        return dict(sorted(found.items()))

    def busy_seconds(self) -> list[float]:
        """The time that each worker has computed."""
        return [worker.engine.busy_seconds for worker in self.workers]


def _card(args: MockerArgs, transfer: str) -> ModelCard:
    return ModelCard(
        name=MODEL,
        model_type=ModelType.Backend.value,
        worker_type=args.worker_type,
        context_length=args.max_model_len,
        kv_cache_block_size=args.block_size,
        runtime_config=ModelRuntimeConfig(
            total_kv_blocks=args.num_gpu_blocks,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            data_parallel_size=args.dp_size,
            runtime_data={} if args.worker_type is WorkerType.Aggregated else {TRANSFER: transfer},
        ),
    )
