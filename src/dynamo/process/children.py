"""The processes that an engine starts end with its worker.

Orphans among them are adopted (Linux), so that everything an engine started stays a descendant of this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_TERM_SECONDS = 2.0
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.02
# Ends by itself with its owner, and then frees the shared memory of processes that were killed.
_TRACKER = b"multiprocessing.resource_tracker"


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that `exit_now` ends them too; for entry points alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopts_orphans() -> bool:
    if sys.platform != "linux":
        return False
    answer = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def exit_now(code: int) -> NoReturn:
    """End this process without clean-up, but with its children if it owns them."""
    end_children()
    os._exit(code)


def exit_within(seconds: float, code: int) -> None:
    """End this process after `seconds` even if its event loop hangs; a program that embeds us is left alone."""
    if adopts_orphans():
        timer = threading.Timer(seconds, exit_now, (code,))
        timer.daemon = True
        timer.start()


def end_children() -> None:
    """Send SIGTERM to every descendant, then SIGKILL; does nothing in a process that did not call `adopt_orphans`."""
    if not adopts_orphans():
        return
    with _ignore_signals():
        _end_descendants()


@contextlib.contextmanager
def _ignore_signals() -> Iterator[None]:
    """Another signal must not end this process before its children. Only the main thread can change handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _end_descendants() -> None:
    begun = time.monotonic()
    terminated: set[int] = set()
    while left := _descendants():
        waited = time.monotonic() - begun
        if waited > _TERM_SECONDS + _KILL_SECONDS:
            return
        for pid in left:
            if waited > _TERM_SECONDS:
                _signal(pid, signal.SIGKILL)
            elif pid not in terminated:
                terminated.add(pid)
                _signal(pid, signal.SIGTERM)
        time.sleep(_POLL_SECONDS)


def _descendants() -> list[int]:
    """The process ids of all living descendants."""
    parents: dict[int, int] = {}
    dead = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The name before it is in parentheses and may contain anything.
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            parents[int(folder.name)] = int(parent)
            if state in ("Z", "X"):
                dead.add(int(folder.name))
    found, level = [], {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += [pid for pid in level if pid not in dead and not _is_tracker(pid)]
    return found


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended, or has become another user's
        os.kill(pid, number)
