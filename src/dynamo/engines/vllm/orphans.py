"""vLLM's processes end with the worker that started them, also when it was killed and could not end them.

vLLM calls `end_with_worker` in each of its processes, by the entry point `vllm.general_plugins`.
"""

from __future__ import annotations

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
