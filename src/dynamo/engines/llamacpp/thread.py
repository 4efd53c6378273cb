"""The engine's thread: commands in, steps out. All that touches llama.cpp after loading happens here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from msgspec import Struct

from dynamo.engines.base import RankLoad
from dynamo.engines.llamacpp.decoder import LlamaDecoder
from dynamo.engines.llamacpp.job import Job
from dynamo.engines.llamacpp.scheduler import LlamaScheduler, Output
from dynamo.kv.messages import KvChange, Tier
from dynamo.protocols.errors import EngineShutdown, from_exception

log = logging.getLogger(__name__)

_LOAD_SECONDS = 0.1
_WAKE = "wake"
"""A command that asks for nothing: a tier has done something."""


class StepReport(Struct, gc=False):
    """What the event loop learns of one step."""

    outputs: list[tuple[Job, Output]]
    released: list[Job]
    """They hold nothing any more."""
    events: list[KvChange]
    load: RankLoad | None
    tier_events: list[tuple[Tier, KvChange]] = []


class ThreadCall(Struct):
    """Something else to do between two steps."""

    function: Callable[[], Any]
    result: asyncio.Future[Any]


class EngineThread:
    """`deliver` is called on the event loop, once per step; `died` as well, if the thread ends by an exception."""

    def __init__(
        self,
        scheduler: LlamaScheduler,
        decoder: LlamaDecoder,
        deliver: Callable[[StepReport], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._decoder = decoder
        self._deliver = deliver
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._commands: SimpleQueue[Job | ThreadCall | str | None] = SimpleQueue()
        self._tiers = scheduler.tiers
        if self._tiers is not None:
            self._tiers.on_wake(lambda: self._commands.put(_WAKE))
        self._calls: set[asyncio.Future[Any]] = set()
        self._released: list[Job] = []
        self._load_at = 0.0
        self._reported: RankLoad | None = None
        self._thread = threading.Thread(target=self._run, name="llamacpp", daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Start a request; may be called by any thread."""
        self._commands.put(job)

    def abort(self, job: Job) -> None:
        """Free what a request holds. A prefill stops in the middle of a step, anything shorter after it."""
        job.aborted = True
        self._commands.put(job)
        # No two steps in a row, else clients that leave fast enough would keep all others from any progress.
        prefilling = job.held is not None and job.prompt_tokens - job.computed > 1
        if prefilling and self._decoder.rewinds and not self._scheduler.was_aborted:
            self._decoder.abort(True)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call `function` in the thread, between two steps; raises EngineShutdown if the thread ends before."""
        result = self._loop.create_future()
        self._calls.add(result)
        self._commands.put(ThreadCall(function, result))
        try:
            return await result
        finally:
            self._calls.discard(result)

    async def close(self) -> None:
        """Stop at once and free everything."""
        if self._thread.is_alive():
            self._commands.put(None)
            if self._decoder.rewinds:
                self._decoder.abort(True)
        await asyncio.to_thread(self._thread.join)
        self._fail_calls()

    def _run(self) -> None:
        try:
            while self._take_commands():
                outputs = self._scheduler.step() if self._scheduler.busy else []
                if self._tiers is not None:
                    self._tiers.save_one()
                self._report(outputs)
        except BaseException as error:  # the requests must learn of it, whatever it is
            log.exception("the engine's thread died")
            self._post(self._end, error)
        finally:
            if self._tiers is not None:
                self._tiers.close()
            self._decoder.close()

    def _end(self, error: BaseException) -> None:
        self._died(error)
        self._fail_calls()

    def _fail_calls(self) -> None:
        for result in self._calls:
            _set(result, None, EngineShutdown("llamacpp is not running"))

    def _take_commands(self) -> bool:
        """Do what was asked since the last step, waiting for something to do; False to end."""
        commands = self._commands
        if self._decoder.rewinds:
            # Before the commands are read: an abort whose command comes later must last.
            self._decoder.abort(False)
        idle = not (self._scheduler.busy or self._released)
        wait = None
        if self._tiers is not None:
            idle = idle and not self._tiers.unsaved
            wait = self._tiers.seconds_to_wait(self._scheduler.fetching)
        while True:
            try:
                command = commands.get(idle, wait)
            except Empty:
                break
            idle = False
            if command is None:
                return False
            if command is _WAKE:
                continue
            assert not isinstance(command, str)
            if isinstance(command, ThreadCall):
                self._do(command)
            elif command.aborted:
                self._scheduler.remove(command)
                self._released.append(command)
            else:
                self._scheduler.add(command)
        if self._scheduler.fetching:
            self._scheduler.add_fetched()
        return True

    def _do(self, call: ThreadCall) -> None:
        try:
            value = call.function()
        except Exception as error:
            self._post(_set, call.result, None, from_exception(error))
        else:
            self._post(_set, call.result, value, None)

    def _report(self, outputs: list[tuple[Job, Output]]) -> None:
        released, self._released = self._released, []
        released += [job for job, output in outputs if type(output) is not int and job.held is None]
        report = StepReport(outputs, released, self._scheduler.blocks.take_events(), self._load())
        if self._tiers is not None:
            report.tier_events = self._tiers.take_changes()
        if report.outputs or report.released or report.events or report.load or report.tier_events:
            self._post(self._deliver, report)

    def _load(self) -> RankLoad | None:
        """When it may have changed, but not at every step."""
        now = time.monotonic()
        if now < self._load_at and self._scheduler.busy:
            return None
        self._load_at = now + _LOAD_SECONDS
        blocks = self._scheduler.blocks
        host, disk = (None, None) if self._tiers is None else self._tiers.weights()
        load = RankLoad(
            host_weight=host,
            disk_weight=disk,
            tiers=[] if self._tiers is None else self._tiers.store.reports(),
            active_decode_blocks=blocks.active_blocks,
            active_prefill_tokens=self._scheduler.prefill_tokens,
            kv_used_blocks=-(-blocks.used // blocks.block_size),
            kv_total_blocks=blocks.cells // blocks.block_size,
        )
        if load == self._reported:
            return None
        self._reported = load
        return load

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: there is nothing left to report to
            log.debug("the event loop is closed")


def _set(result: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if result.done():
        return
    if error is None:
        result.set_result(value)
    else:
        result.set_exception(error)
