"""SGLang's processes, and what it does to the process that starts them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sglang.srt.entrypoints.engine import Engine

from dynamo.engines.sglang.scheduler import run_slim_scheduler
from dynamo.engines.sglang.steps import are_readable, watched


class DeathWatch:
    """Calls `died` once, on the event loop.

    On the leader SGLang's watchdog sends SIGQUIT to this process when a child has died; on a follower it has none, so
    the children are watched here.
    """

    def __init__(self, died: Callable[[str], None]) -> None:
        self._died: Callable[[str], None] | None = died
        self._files: list[int] = []
        self._signalled = False

    def take_signal(self) -> None:
        """To be called before SGLang starts anything: a failing process sends SIGQUIT, which would end this one."""
        self._loop = asyncio.get_running_loop()
        try:
            self._loop.add_signal_handler(signal.SIGQUIT, self._report, "one of its processes failed")
            self._signalled = True
        except (ValueError, RuntimeError):
            pass  # not in the main thread: the program that embeds us owns the signals

    def watch(self, pids: Iterable[int]) -> None:
        for pid in pids:
            try:
                file = os.pidfd_open(pid)
            except ProcessLookupError:
                self._report(f"process {pid} ended")
                return
            except (AttributeError, OSError):
                return  # not Linux: only the signal reports it
            self._files.append(file)
            self._loop.add_reader(file, self._report, f"process {pid} ended")

    def _report(self, reason: str) -> None:
        if self._died is not None:
            died, self._died = self._died, None
            died(reason)

    def close(self) -> None:
        """SIGQUIT stays caught while SGLang ends its processes; `release_signal` lets go of it."""
        self._died = None
        for file in self._files:
            self._loop.remove_reader(file)
            os.close(file)
        self._files = []

    def release_signal(self) -> None:
        if self._signalled:
            self._signalled = False
            self._loop.remove_signal_handler(signal.SIGQUIT)


class UndetokenizedEngine(Engine):  # type: ignore[misc]
    """SGLang without its detokenizer: the outputs of its scheduler come to this process as they are."""

    @staticmethod
    def init_tokenizer_manager_func(server_args: Any, port_args: Any) -> Any:
        made = Engine.init_tokenizer_manager_func(server_args, port_args)
        # A scheduler with a tokenizer sends its outputs to the detokenizer.
        made[0].recv_from_detokenizer.bind(port_args.detokenizer_ipc_name)
        return made

    @classmethod
    def _launch_detokenizer_subprocesses(cls, *_: Any, **__: Any) -> tuple[list[Any], list[str]]:
        return [], []


class SlimEngine(UndetokenizedEngine):
    """The same, and its outputs hold nothing that `Steps` does not read."""

    run_scheduler_process_func = staticmethod(run_slim_scheduler)


def load(args: Any) -> Any:
    """Start SGLang's processes and wait until they have loaded the model; blocks for minutes."""
    with keeping_logs():
        if not are_readable():
            llm = Engine(server_args=args)
        else:
            llm = (UndetokenizedEngine if watched(vars(args)) else SlimEngine)(server_args=args)
    # What was imported stays: without this a full collection stops all streams for a tenth of a second or more.
    gc.collect()
    gc.freeze()
    return llm


@contextlib.contextmanager
def keeping_logs() -> Iterator[None]:
    """SGLang replaces the handlers of the root logger; what is logged must go where dynamo's flags say."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def start_handle_loop(tokenizer_manager: Any) -> None:
    """Start the task that reads SGLang's answers, without its handlers for SIGTERM and SIGQUIT.

    They would replace those of the worker, which has to leave discovery and drain, and would kill this process.
    """
    loop: Any = asyncio.get_running_loop()
    loop.add_signal_handler = lambda *_: None
    try:
        tokenizer_manager.auto_create_handle_loop()
    finally:
        del loop.add_signal_handler
