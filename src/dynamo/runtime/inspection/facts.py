"""The process in figures, from what the system knows of it."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynamo import __version__

SECRETS = ("key", "token", "secret", "password")


def process_facts() -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    facts: dict[str, Any] = {
        "pid": os.getpid(),
        "command": shown_command(sys.orig_argv),
        "version": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "threads": threading.active_count(),
        "gc_counts": gc.get_count(),
    }
    with contextlib.suppress(OSError, KeyError, ValueError):
        status = read_status(os.getpid())
        facts["rss_mb"] = round(int(status["VmRSS"].split()[0]) / 1024, 1)
        facts["peak_rss_mb"] = round(int(status["VmHWM"].split()[0]) / 1024, 1)
        facts["open_files"] = len(os.listdir("/proc/self/fd"))
    return facts


def shown_command(words: Sequence[str]) -> str:
    """A command line without the values of its secrets."""
    shown, hide = [], False
    for word in words:
        flag, equals, _ = word.partition("=")
        secret = flag.startswith("-") and any(name in flag.lower() for name in SECRETS)
        shown.append("…" if hide else f"{flag}=…" if secret and equals else word)
        hide = secret and not equals
    return " ".join(shown)


def command_of(pid: int) -> str:
    """Empty where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return shown_command(text.rstrip("\0").split("\0"))


def read_status(pid: int) -> dict[str, str]:
    """/proc/PID/status; raises OSError."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
