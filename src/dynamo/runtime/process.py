"""The life of a process: start, or exit with an error of one line; drain at the first signal, exit at the second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from dynamo.process.children import end_children, exit_now
from dynamo.protocols.errors import DynamoException, StartError

if TYPE_CHECKING:  # `fail` is for commands too, which need no network to show their help
    from dynamo.runtime.distributed import DistributedRuntime
    from dynamo.runtime.inspection.listener import InspectionListener

log = logging.getLogger(__name__)

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code shells use for a process that SIGINT ended."""
_LOOP_SECONDS = 1.0
"""The event loop responds within this time unless something blocks it."""


def fail(message: str, *, code: int = 1, error: BaseException | None = None) -> SystemExit:
    """Print one line on stderr, and the traceback only at debug level; the caller raises what this returns."""
    if error and log.isEnabledFor(logging.DEBUG):
        log.debug("where it failed", exc_info=error)
    print(f"error: {message}", file=sys.stderr, flush=True)
    return SystemExit(code)


@contextlib.contextmanager
def failures_as_one_line() -> Iterator[None]:
    """For an entry point: whatever fails exits with one line, code 2 for a wrong value and 1 for the rest.

    Nothing that the process started outlives it.
    """
    try:
        yield
    except ValueError as error:
        raise fail(str(error), code=2, error=error) from None
    except (StartError, DynamoException) as error:
        raise fail(str(error), error=error) from None
    except Exception as error:
        raise fail(f"{type(error).__name__}: {error} (more with -v)", error=error) from None
    finally:
        end_children()


async def start_or_exit(make: Callable[[], DistributedRuntime]) -> DistributedRuntime:
    try:
        runtime = make()
    except ValueError as error:
        raise fail(str(error), code=2, error=error) from None
    except StartError as error:
        raise fail(str(error), error=error) from None
    try:
        await runtime.start()
    except StartError as error:
        await runtime.close()
        raise fail(str(error), error=error) from None
    return runtime


async def run_until_signalled(
    runtime: DistributedRuntime, work: Awaitable[T], *, only_serves: bool = False
) -> T | None:
    """Run `work`; SIGTERM and SIGINT shut the runtime down and give `work` time to finish.

    Where `work` `only_serves` endpoints, it gets no time before one of them was found by others.
    """
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def on_signal() -> None:
        if signalled.is_set():
            exit_now(1)
        signalled.set()
        runtime.shutdown()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    listener = _inspection_listener(runtime, loop)
    task = asyncio.ensure_future(work)
    waiter = asyncio.create_task(signalled.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        drains = runtime.has_served or not only_serves
        if not task.done() and drains:
            # Endpoints limit their own draining; the worker function's clean-up after them gets 5 s more.
            await asyncio.wait({task}, timeout=runtime.config.graceful_shutdown_timeout + 5)
        if not task.done():
            if drains:
                log.warning("the worker function did not return after shutdown and is cancelled")
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None
        except StartError as error:
            raise fail(str(error), error=error) from None
    finally:
        waiter.cancel()
        try:
            await runtime.close()
        finally:
            if listener:
                await listener.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _inspection_listener(runtime: DistributedRuntime, loop: asyncio.AbstractEventLoop) -> InspectionListener | None:
    """What answers `dynamo inspect`, started, unless it is off."""
    runtime.inspection.follow(loop)
    folder = runtime.config.inspection_folder
    if folder is None:
        return None
    from dynamo.runtime.inspection.listener import InspectionListener

    listener = InspectionListener(runtime.inspection, folder)
    listener.start()
    return listener


@contextlib.contextmanager
def exit_if_blocked(code: int) -> Iterator[None]:
    """Inside `run_until_signalled`: a signal ends the process although code that is not ours blocks the event loop."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    responses: queue.SimpleQueue[bool] = queue.SimpleQueue()
    """True for each response of the loop, False at the end."""
    watches: list[threading.Thread] = []

    def watch() -> None:
        goes_on = True
        while goes_on:
            loop.call_soon_threadsafe(responses.put, True)
            try:
                goes_on = responses.get(timeout=_LOOP_SECONDS)
            except queue.Empty:
                exit_now(code)
            with contextlib.suppress(queue.Empty):
                goes_on = goes_on and responses.get(timeout=_LOOP_SECONDS / 10)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if callable(loops := before[signal.Signals(number)]):
            loops(number, frame)
        if not watches:
            watches.append(threading.Thread(target=watch, name="dynamo-exit-if-blocked", daemon=True))
            watches[0].start()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        responses.put(False)
        for thread in watches:
            thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)


async def unless_shut_down(runtime: DistributedRuntime, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if the runtime shut down first, which cancels it."""
    task = asyncio.create_task(work)
    leaving = asyncio.create_task(runtime.wait_for_shutdown())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        task.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)
    return None if task.cancelled() else task.result()
