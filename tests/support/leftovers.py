"""What a test may leave behind it: nothing. Threads, tasks, child processes and temporary files have an owner."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNOWNED = (
    "dynamo-blocking",  # `in_thread` abandons what cannot be interrupted when its caller is cancelled
    "_poll_wrapper",  # of grpc, one per process
    "tqdm_monitor",  # of tqdm, one per process
    "asyncio_",  # of the executor of an event loop, which ends with the loop
    "uvloop_",
)
TRIAL = "grammar_trial_process.py"
SESSION: set[int] = set()
"""Processes that end with the session: a test may be the first to need one."""


def child_processes() -> dict[int, str]:
    """The children of this process, dead ones that nobody waited for among them, with their commands."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                found[pid] = _command(pid)
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def orphans(temporary: Path) -> dict[int, str]:
    """Processes that tests started with this folder for temporary files and that outlived their parents."""
    mark, own = f"TMPDIR={temporary}".encode(), set(descendants(os.getpid()))
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in own | {os.getpid()}:
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = _command(int(entry.name))
    return found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


@contextmanager
def nothing_left(temporary: Path, *, engines: bool = False) -> Iterator[None]:
    """Fails with the names of the threads, child processes and files in `temporary` that the body left.

    With `engines` threads may be left: those of an engine that several tests share grow with its requests.
    """
    threads, children, files = set(threading.enumerate()), child_processes(), set(temporary.iterdir())
    yield
    began = [thread.name for thread in threading.enumerate() if thread not in threads]
    left = [f"thread {name}" for name in began if not engines and not any(known in name for known in UNOWNED)]
    children |= dict.fromkeys(SESSION, "")
    born = {pid: command for pid, command in child_processes().items() if pid not in children}
    # An engine that several tests share starts the process that tries grammars with the first one.
    left += [f"process {pid}: {command}" for pid, command in born.items() if not (engines and TRIAL in command)]
    left += [f"file {path}" for path in temporary.iterdir() if path not in files]
    assert not left, f"the test left {', '.join(left)}"
