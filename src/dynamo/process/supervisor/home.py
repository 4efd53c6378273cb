"""What a deployment leaves for the supervisor that comes next: a lock, a record of each process, and their output.

Processes outlive a supervisor that is killed. A record is written by the process itself before it runs its program, so
none is lost however the supervisor ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from dynamo.protocols.errors import StartError

_RECORD = ".process"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def home_of(file: Path, environ: Mapping[str, str]) -> Home | None:
    """None where the kernel cannot say which process is which: there, nothing outlives its supervisor's drain."""
    return Home(file, environ) if sys.platform == "linux" else None


class ProcessRecord(Struct, frozen=True):
    """A process, so that it is not taken for another one that has its number later."""

    name: str
    component: str
    index: int
    command: Sequence[str]
    boot: str
    pid: int = 0
    started: int = 0
    """The kernel's clock ticks since the boot."""


class Home:
    """The folder of one deployment file, which one supervisor at a time holds."""

    def __init__(self, file: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home()) / ".local" / "state"
        place = hashlib.sha256(os.fsencode(file.expanduser().resolve())).hexdigest()[:16]
        self.folder = Path(state) / "dynamo" / "serve" / f"{file.stem}-{place}"
        self._lock: int | None = None

    def take(self) -> None:
        """Raises StartError while another supervisor holds it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            about = self.folder.stat()
            if about.st_uid != os.geteuid() or about.st_mode & 0o022:
                raise StartError(f"{self.folder} must be this user's, and writable by nobody else")
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartError(f"{self.folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 32, 0).decode() or "unknown"
            os.close(lock)
            raise StartError(
                f"{self._file} is served already, by process {holder}; dynamo serve --stop {self._file} ends it"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    async def stop_holder(self) -> bool:
        """Have the supervisor that holds it drain, and wait until it has ended; False if there is none."""
        holder = self._holder()
        if holder is None:
            return False
        try:
            fd = os.pidfd_open(holder)
        except ProcessLookupError:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGTERM)
        await _ended(fd)
        return True

    def _holder(self) -> int | None:
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return int(os.pread(lock, 32, 0) or 0) or None
        finally:
            os.close(lock)
        return None

    def release(self) -> None:
        """Give it back; the files of processes that run are kept."""
        if self._lock is None:
            return
        if not list(self.folder.glob(f"*{_RECORD}")):
            shutil.rmtree(self.folder / "discovery", ignore_errors=True)
            for log in self.folder.glob("*.log"):
                log.unlink()
        os.close(self._lock)
        self._lock = None

    @property
    def discovery(self) -> Path:
        return self.folder / "discovery"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def recording(self, name: str, component: str, index: int, command: Sequence[str]) -> Callable[[], None]:
        """What a child calls before it runs its program."""
        record = ProcessRecord(name=name, component=component, index=index, command=command, boot=_boot())
        path = self._path(name)

        def write() -> None:
            whole = structs.replace(record, pid=os.getpid(), started=_started(os.getpid()))
            unfinished = path.with_suffix(".part")
            unfinished.write_bytes(msgspec.json.encode(whole))
            unfinished.replace(path)

        return write

    def forget(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def left(self) -> list[tuple[ProcessRecord, Adopted]]:
        """The processes of an earlier supervisor that still run; records of others are removed."""
        found = []
        for path in sorted(self.folder.glob(f"*{_RECORD}")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=ProcessRecord)
                process = Adopted(record)
            except (msgspec.MsgspecError, ProcessLookupError):
                path.unlink(missing_ok=True)
                continue
            found.append((record, process))
        return found

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_RECORD}"


class Adopted:
    """A process that another one started, like `asyncio.subprocess.Process`; raises ProcessLookupError if it ended."""

    def __init__(self, record: ProcessRecord) -> None:
        if record.boot != _boot():
            raise ProcessLookupError(record.pid)
        self.pid = record.pid
        self.returncode: int | None = None
        # Opened before the check: from then on it is this process, whoever gets its number.
        self._fd = os.pidfd_open(record.pid)
        try:
            if _started(record.pid) != record.started:
                raise ProcessLookupError(record.pid)
        except (OSError, IndexError):
            os.close(self._fd)
            raise ProcessLookupError(record.pid) from None

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._fd, number)

    async def wait(self) -> int:
        """Until it has ended; how is known to its parent only, so it counts as well."""
        await _ended(self._fd)
        self.returncode = 0
        return 0


async def _ended(pidfd: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _started(pid: int) -> int:
    # The name before it is in parentheses and may contain anything.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        raise ProcessLookupError(pid)
    return int(fields[19])


def _boot() -> str:
    return _BOOT.read_text().strip()
