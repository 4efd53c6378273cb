"""vLLM's processes end with the worker that started them: not before it, and also when it was killed.

`plugin` calls `end_with_worker` in each of vLLM's processes.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.resource_tracker
import os
import select
import signal
import threading
from collections.abc import MutableMapping

_WORKER = "_DYNAMO_VLLM_WORKER"


def mark(environ: MutableMapping[str, str]) -> None:
    """This process is the worker; processes that inherit the environment will end with it."""
    environ[_WORKER] = str(os.getpid())


def is_marked() -> bool:
    """Whether this process was started by a worker, and is not the worker."""
    return os.environ.get(_WORKER, str(os.getpid())) != str(os.getpid())


def end_with_worker() -> None:
    if not is_marked() or not hasattr(os, "pidfd_open"):
        return
    worker = int(os.environ[_WORKER])
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
    """The child processes that begin within its `with` block, of all those of this process.

    Ctrl-C in a terminal does not reach them: only the worker knows when its requests are finished. Their handlers of
    SIGINT cannot be prevented, but they inherit the signal as blocked from the thread that enters the block.
    """

    def __init__(self) -> None:
        self._before: set[int] | None = None
        self._pids: set[int] = set()
        self._mask: set[int] = set()

    def __enter__(self) -> None:
        self._before = {child.pid for child in multiprocessing.active_children() if child.pid}
        multiprocessing.resource_tracker.ensure_running()  # where it is not running, it unblocks SIGINT as it starts
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
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
