"""One supervised process: started again when it dies, given up when it never becomes ready, ended in good order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import enum
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dynamo.process.backoff import Backoff
from dynamo.process.readiness import READY, VARIABLE
from dynamo.process.supervisor.home import Adopted, Home
from dynamo.process.supervisor.output import each_line, followed_lines

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STARTS = 3
"""A process that ends this often in a row before it was ready is given up."""
_STABLE_SECONDS = 60.0
"""After this time of service the pause before a restart is the shortest again."""
_USAGE_ERROR = 2
_PR_SET_PDEATHSIG = 1

Say = Callable[[str, str], None]
"""Called with the name of a process and a line of it."""


class ProcessState(enum.Enum):
    Starting = "starting"
    Ready = "ready"
    Waiting = "waiting to restart"
    Stopping = "draining"
    Stopped = "stopped"
    Failed = "failed"


class SupervisedProcess:
    def __init__(
        self,
        name: str,
        command: list[str],
        environ: Mapping[str, str],
        folder: Path,
        say: Say,
        *,
        reports_ready: bool,
        first_pause: float,
        home: Home | None = None,
        record: Callable[[], None] | None = None,
        adopted: Adopted | None = None,
    ) -> None:
        """With a `home` it outlives this process: its output goes to a file there, and it calls `record` first.

        An `adopted` one runs already.
        """
        self.name = name
        self.state = ProcessState.Starting
        self.restarts = 0
        self.reason = ""
        """Why it was given up."""
        self.changed: Callable[[], None] = lambda: None
        self._command = command
        self._environ = dict(environ)
        self._socket = folder / f"{name}.ready"
        self._say = say
        self._reports_ready = reports_ready
        self._pauses = Backoff(first_pause, LONGEST_PAUSE)
        self._home = home
        self._record = record
        self._adopted = adopted
        self._process: asyncio.subprocess.Process | Adopted | None = adopted
        self._stopping = asyncio.Event()
        self._caught_up = asyncio.Event()
        """All output of the process was read, up to now."""
        self._last_line = ""

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self) -> None:
        """Run the process, and start it again when it dies, until `stop` or until it is given up."""
        failures = 0
        while self._adopted or not self._stopping.is_set():
            if not self._adopted:
                self._set(ProcessState.Starting)
            begun = time.monotonic()
            code, was_ready = await self._run_once()
            if self._stopping.is_set():
                break
            failures = 0 if was_ready else failures + 1
            ended = _describe_end(code)
            if failures >= STARTS or (failures and code == _USAGE_ERROR):
                times = "" if failures == 1 else f" {failures} times in a row"
                said = f"; its last line: {self._last_line}" if self._last_line else ""
                self.reason = f"{self.name} {ended}{times} before it was ready{said}"
                if self._home:
                    self._home.forget(self.name)
                self._set(ProcessState.Failed)
                return
            if was_ready and time.monotonic() - begun > _STABLE_SECONDS:
                self._pauses.reset()
            pause = self._pauses.pause()
            self._say(self.name, f"{ended}; starting it again in {pause:g} s")
            self._set(ProcessState.Waiting)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            self.restarts += 1
        if self._home:
            self._home.forget(self.name)
        self._set(ProcessState.Stopped)

    def stop(self) -> None:
        """Ask it to finish and exit; a second call changes nothing: workers take a second SIGTERM as "at once"."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self.pid is not None:
                self._set(ProcessState.Stopping)
                self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _run_once(self) -> tuple[int, bool]:
        """Run the process once; returns its exit code and whether it was ready."""
        self._last_line = ""
        if self._adopted:
            return await self._follow_adopted(self._adopted)
        with contextlib.closing(_listen(self._socket)) as notices:
            output = self._open_log() if self._home else asyncio.subprocess.PIPE
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=self._environ | {VARIABLE: str(self._socket), "PYTHONUNBUFFERED": "1"},
                    start_new_session=True,  # Ctrl-C is for the supervisor, which then drains in order
                    preexec_fn=self._record or _end_with(os.getpid()),
                )
            except OSError as error:
                self._last_line = f"cannot start {self._command[0]}: {error.strerror or error}"
                self._say(self.name, self._last_line)
                return 127, False
            finally:
                if self._home:
                    os.close(output)
            self._process = process
            if self._stopping.is_set():
                self._set(ProcessState.Stopping)
                self._signal(signal.SIGTERM)
            ready = asyncio.create_task(self._become_ready(notices))
            code = await self._say_lines(process)
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            return code, not ready.cancelled()

    async def _follow_adopted(self, process: Adopted) -> tuple[int, bool]:
        """It was started before: whether it is ready was said then, to a supervisor that is gone."""
        self._adopted = None
        if not self._stopping.is_set():
            self._set(ProcessState.Ready)
        return await self._say_lines(process, missed=True), True

    async def _say_lines(self, process: asyncio.subprocess.Process | Adopted, *, missed: bool = False) -> int:
        """Pass its output on until it has ended; returns its exit code."""
        ended = asyncio.ensure_future(process.wait())
        if self._home:
            lines = followed_lines(self._home.log(self.name), ended, from_end=missed, caught_up=self._caught_up.set)
        else:
            assert isinstance(process, asyncio.subprocess.Process)
            assert process.stdout
            lines = each_line(process.stdout)
        async for line in lines:
            if line.strip():
                self._last_line = line.strip()
            self._say(self.name, line)
        return await ended

    def _open_log(self) -> int:
        assert self._home
        return os.open(self._home.log(self.name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    async def _become_ready(self, notices: socket.socket) -> None:
        if self._reports_ready:
            while READY not in (await asyncio.get_running_loop().sock_recv(notices, 4096)).split(b"\n"):
                pass
        if self._home:
            # What it said before comes first.
            self._caught_up.clear()
            await self._caught_up.wait()
        if not self._stopping.is_set():
            self._set(ProcessState.Ready)

    def _set(self, state: ProcessState) -> None:
        self.state = state
        self.changed()

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.setblocking(False)
    notices.bind(str(path))
    return notices


def _end_with(supervisor: int) -> Callable[[], None] | None:
    """Runs in the child: a supervisor that is killed must not leave processes behind that hold ports and GPUs."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)

    return end_with_parent


def _describe_end(code: int) -> str:
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with {code}"
