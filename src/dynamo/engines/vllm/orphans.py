"""vLLM's processes end with the worker that started them, also when it was killed and could not end them.

vLLM calls `end_with_worker` in each of its processes, by the entry point `vllm.general_plugins`.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
from collections.abc import MutableMapping

_WORKER = "_DYNAMO_VLLM_WORKER"


def mark(environ: MutableMapping[str, str]) -> None:
    """This process is the worker; processes that inherit the environment will end with it."""
    environ[_WORKER] = str(os.getpid())


def end_with_worker() -> None:
    worker = int(os.environ.get(_WORKER, "0"))
    if worker in (0, os.getpid()) or not hasattr(os, "pidfd_open"):
        return
    try:
        file = os.pidfd_open(worker)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(file,), name="dynamo-worker-alive", daemon=True).start()


def _watch(file: int) -> None:
    alive = select.poll()
    alive.register(file, select.POLLIN)
    alive.poll()
    os.kill(os.getpid(), signal.SIGKILL)


class OwnChildren:
    """The child processes that begin within its `with` block, of all those of this process."""

    def __init__(self) -> None:
        self._before: set[int] | None = None
        self._pids: set[int] = set()

    def __enter__(self) -> None:
        self._before = {child.pid for child in multiprocessing.active_children() if child.pid}

    def __exit__(self, *_: object) -> None:
        self._pids = self._begun()
        self._before = None

    def _begun(self) -> set[int]:
        here = {child.pid for child in multiprocessing.active_children() if child.pid}
        return self._pids if self._before is None else here - self._before

    def kill(self) -> None:
        begun = self._begun()
        for child in multiprocessing.active_children():
            if child.pid in begun:
                child.kill()
