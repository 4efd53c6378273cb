"""Reports what a process leaves at its end. Python imports this module as it starts, if its folder is on the path."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # before our hook, which then sees the pools that nobody shut down
import json
import os
import sys
import threading
from asyncio import runners
from pathlib import Path
from typing import Any

FOLDER = "DYNAMO_TESTS_EXIT_REPORTS"
_tasks: list[str] = []
_cancel_all = runners._cancel_all_tasks  # type: ignore[attr-defined]


def _cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """What the loop's last task has left to the loop to end."""
    _tasks.extend(map(repr, asyncio.all_tasks(loop)))
    _cancel_all(loop)


def _report(folder: Path) -> None:
    own = threading.current_thread(), threading.main_thread()
    left: dict[str, Any] = {
        "command": sys.orig_argv,
        "threads": [thread.name for thread in threading.enumerate() if thread not in own],
        "tasks": _tasks,
    }
    unfinished = folder / f"{os.getpid()}.part"
    unfinished.write_text(json.dumps(left))
    unfinished.rename(folder / f"{os.getpid()}.json")


if folder := os.environ.get(FOLDER):
    runners._cancel_all_tasks = _cancel_all_tasks  # type: ignore[attr-defined]
    threading._register_atexit(_report, Path(folder))  # type: ignore[attr-defined]
