"""`--http-workers N`: N processes on one port, and the parent that keeps them running.

The kernel spreads new connections over the processes. Parent and child hold a socket pair: the child writes a byte when
it serves, and exits when the parent's end closes, for whatever reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from dynamo.frontend.server import cannot_listen
from dynamo.process.backoff import Backoff

log = logging.getLogger(__name__)

READY = b"+"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

Command = Callable[[int, int, Path, int], list[str]]
"""The command line of a child: (index, port, folder of the siblings, number of its socket)."""


def reserve(host: str, port: int) -> tuple[socket.socket, int]:
    """Hold a port for the children without listening on it; raises ServerError when it is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if port:
            # With SO_REUSEPORT binding succeeds beside another such server: check without it that the port is free.
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        held = socket.socket(family)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    return held, held.getsockname()[1]


class HttpProcess:
    """One child, restarted when it dies."""

    def __init__(self, index: int, command: Callable[[int], list[str]]) -> None:
        self.ready = asyncio.Event()
        self.serving = False
        """The current process serves requests; `ready` stays set once any of them did."""
        self.code = 0
        self.process: asyncio.subprocess.Process | None = None
        self._index = index
        self._command = command
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Returns after `stop`, or when the first process exits before it ever served."""
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._stopping.is_set():
            served = await self._run_once()
            if self._stopping.is_set():
                return
            if not self.ready.is_set():
                return
            if served:
                pauses.reset()
            log.error("worker process %d ended with %s, starting another", self._index, self.code)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pauses.pause())

    async def _run_once(self) -> bool:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours:
            with theirs:
                self.process = await asyncio.create_subprocess_exec(
                    *self._command(theirs.fileno()), pass_fds=(theirs.fileno(),), start_new_session=True
                )
            if self._stopping.is_set():
                self.process.terminate()
            served = await asyncio.get_running_loop().sock_recv(ours, 1) == READY
            if served:
                self.serving = True
                self.ready.set()
                log.info("worker process %d serves (pid %d)", self._index, self.process.pid)
            code = await self.process.wait()
            self.serving = False
            if self._stopping.is_set() and code == -signal.SIGTERM:
                # The child got the signal before it had installed its handler.
                code = 0
            # As a shell reports it.
            self.code = 128 - code if code < 0 else code
        return served

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._stopping.is_set() and number == signal.SIGTERM:
            # A second SIGTERM would end the child without waiting for its requests.
            return
        self._stopping.set()
        self.send(number)

    def send(self, number: int) -> None:
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


async def supervise(
    count: int,
    host: str,
    port: int,
    command: Command,
    serving: Callable[[int], None],
    passed_on: Sequence[signal.Signals] = (),
) -> int:
    """Run `count` children until a signal comes; returns the exit code for the parent.

    `serving` is called with the port once all of them serve. A child that cannot start ends all of them. Signals in
    `passed_on` are only forwarded to the children that serve.
    """
    with contextlib.ExitStack() as stack:
        held, port = reserve(host, port)
        stack.enter_context(held)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-frontend-")))

        def command_of(index: int) -> Callable[[int], list[str]]:
            return lambda number: command(index, port, folder, number)

        workers = [HttpProcess(index, command_of(index)) for index in range(count)]
        async with forwarded(workers, passed_on):
            tasks = [asyncio.create_task(worker.run()) for worker in workers]
            all_serve = asyncio.create_task(all_ready(workers))
            try:
                await asyncio.wait((*tasks, all_serve), return_when=asyncio.FIRST_COMPLETED)
                if all_serve.done():
                    serving(port)
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                all_serve.cancel()
                for worker in workers:
                    worker.stop()
                await asyncio.gather(all_serve, *tasks, return_exceptions=True)
        return max(worker.code for worker in workers)


async def all_ready(workers: list[HttpProcess]) -> None:
    for worker in workers:
        await worker.ready.wait()


@contextlib.asynccontextmanager
async def forwarded(workers: list[HttpProcess], passed_on: Sequence[signal.Signals]) -> AsyncIterator[None]:
    """The first signal asks the children to finish and exit, the second kills them."""
    loop = asyncio.get_running_loop()
    numbers = iter((signal.SIGTERM,))

    def on_signal() -> None:
        number = next(numbers, signal.SIGKILL)
        for worker in workers:
            worker.stop(number)

    def pass_on(number: int) -> None:
        for worker in workers:
            # Before that it has no handler for the signal, which would end it.
            if worker.serving:
                worker.send(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
    for each in passed_on:
        loop.add_signal_handler(each, pass_on, each)
    try:
        yield
    finally:
        for each in (signal.SIGTERM, signal.SIGINT, *passed_on):
            loop.remove_signal_handler(each)


class Parent:
    """The child's end of the socket pair."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.setblocking(False)

    def report_ready(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(READY)

    async def gone(self) -> None:
        """Wait until the parent has exited."""
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(self._socket, 1)

    def close(self) -> None:
        self._socket.close()
