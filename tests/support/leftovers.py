"""What a test may leave behind it: nothing. Threads, tasks, child processes and temporary files have an owner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def child_processes() -> dict[int, str]:
    """The children of this process, dead ones that nobody waited for among them, with their commands."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                found[pid] = _command(pid)
    return found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


@contextmanager
def nothing_left(temporary: Path) -> Iterator[None]:
    """Fails with the names of the threads, child processes and files in `temporary` that the body left."""
    threads, children, files = set(threading.enumerate()), child_processes(), set(temporary.iterdir())
    yield
    left = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    left += [f"process {pid}: {command}" for pid, command in child_processes().items() if pid not in children]
    left += [f"file {path}" for path in temporary.iterdir() if path not in files]
    assert not left, f"the test left {', '.join(left)}"
