"""`python standby_worker.py MODULE WORDS…`: `python -m MODULE WORDS…` as soon as SIGUSR1 comes, with its imports done.

Importing is nearly all that a worker of a small model does until it serves. A test that kills often has it done ahead.
"""

from __future__ import annotations

import importlib
import runpy
import signal
import sys

NEEDED = ("dynamo.worker.main", "dynamo.engines.llamacpp.engine", "dynamo.engines.mocker.engine")

if __name__ == "__main__":
    # First: the threads that some modules start inherit it, and would end the process otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for name in NEEDED:
        importlib.import_module(name)
    print("standing by", flush=True)
    signal.sigwait([signal.SIGUSR1])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
