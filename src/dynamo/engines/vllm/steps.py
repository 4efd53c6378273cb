"""The steps of vLLM: measured by its scheduler, in the process of its engine, and read by the worker.

Only the scheduler knows what is in a step: the outputs that come to the worker are silent about parts of prompts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from msgspec import Struct

from dynamo.engines.base import StepListener
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledPrompt, ScheduledRequestMetrics

log = logging.getLogger(__name__)

_ADDRESS = "_DYNAMO_VLLM_STEPS"
_QUEUES = ("waiting", "kv_holding_waiting", "skipped_waiting")
"""The queues of a scheduler; not all versions of vLLM have all of them."""
_HIGH_WATER = 8192
"""Steps that may wait for the worker to read them; more are lost."""


class EngineStep(Struct, array_like=True, frozen=True, gc=False):
    """What the engine's process sends."""

    dp_rank: int
    seconds: float
    scheduled: ScheduledRequestMetrics
    queued: QueuedRequestMetrics


def announce_steps(environ: MutableMapping[str, str], sockets: Path | None) -> None:
    """For vLLM's processes, which inherit the environment: where steps go, or None if nobody asks for them."""
    environ.pop(_ADDRESS, None)
    if sockets is not None:
        environ[_ADDRESS] = f"ipc://{sockets}/steps"


class StepReader:
    """The worker's end."""

    def __init__(self, sockets: Path, listener: StepListener) -> None:
        self._address = f"ipc://{sockets}/steps"
        self._listener = listener
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        decode = msgspec.msgpack.Decoder(EngineStep).decode
        with zmq.asyncio.Context() as context, context.socket(zmq.PULL) as socket:
            socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
            socket.bind(self._address)
            while True:
                step = decode(await socket.recv())
                self._listener(step.dp_rank, step.seconds, step.scheduled, step.queued)

    async def close(self) -> None:
        self._task.cancel()
        for error in await asyncio.gather(self._task, return_exceptions=True):
            if isinstance(error, Exception):
                log.error("the steps of vLLM could not be read: %s", error)


def report_steps() -> None:
    """To be called in the process of the engine, before its first request."""
    address = os.environ.get(_ADDRESS)
    if not address:
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule, update = Scheduler.schedule, Scheduler.update_from_output
    meter = StepMeter(address)

    def scheduled(scheduler: Any, *args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        output = schedule(scheduler, *args, **options)
        if meter.works:
            meter.scheduled(scheduler, output, begun)
        return output

    def updated(scheduler: Any, output: Any, *args: Any, **options: Any) -> Any:
        found = update(scheduler, output, *args, **options)
        if meter.works:
            meter.computed(scheduler, output)
        return found

    Scheduler.schedule, Scheduler.update_from_output = scheduled, updated


class StepMeter:
    """Follows the steps of the one scheduler of a process, of which several may be under way."""

    def __init__(self, address: str) -> None:
        self._socket = zmq.Context().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._encode = msgspec.msgpack.Encoder().encode
        self._under_way: deque[tuple[Any, float, ScheduledRequestMetrics, QueuedRequestMetrics]] = deque()
        self._ended = 0.0
        self.works = True

    def scheduled(self, scheduler: Any, output: Any, begun: float) -> None:
        if not output.total_num_scheduled_tokens:
            return
        try:
            self._under_way.append((output, begun, scheduled_requests(scheduler, output), queued_requests(scheduler)))
        except Exception as error:  # a scheduler that is not as those that were tested; its requests go on
            self.works = False
            log.error("the steps of vLLM are not reported: %s: %s", type(error).__name__, error)

    def computed(self, scheduler: Any, output: Any) -> None:
        """A step that was scheduled while the one before it ran began when that one ended."""
        while self._under_way and output.total_num_scheduled_tokens:
            scheduled_output, begun, scheduled, queued = self._under_way.popleft()
            if scheduled_output is output:
                break
        else:
            return
        now = time.perf_counter()
        seconds, self._ended = now - max(begun, self._ended), now
        parallel = scheduler.vllm_config.parallel_config
        rank = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        try:
            self._socket.send(self._encode(EngineStep(rank, seconds, scheduled, queued)), zmq.NOBLOCK)
        except zmq.Again:
            log.debug("the worker does not read its steps: one is lost")


def scheduled_requests(scheduler: Any, output: Any) -> ScheduledRequestMetrics:
    cached = output.scheduled_cached_reqs
    before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    again = cached.resumed_req_ids
    prefills, contexts = [], []
    for id, tokens in output.num_scheduled_tokens.items():
        prompt, computed = scheduler.requests[id].num_prompt_tokens, before[id]
        if computed < prompt or id in again:
            prefills.append(ScheduledPrompt(prompt, tokens, computed))
        else:
            contexts.append(computed + tokens)
    return ScheduledRequestMetrics.of(prefills, contexts)


def queued_requests(scheduler: Any) -> QueuedRequestMetrics:
    queues = [getattr(scheduler, name, ()) for name in _QUEUES]
    waiting = [request for queue in queues for request in queue]
    return QueuedRequestMetrics.of(
        [request.num_prompt_tokens for request in waiting if not request.num_output_tokens],
        [request.num_tokens for request in waiting if request.num_output_tokens],
    )
