"""`python fork_server.py SOCKET`: for each message `python -m MODULE WORDS…` in a fork, which has its imports done.

Importing is nearly all that a worker of a small model does until it serves: with it done once, a test can kill often.
A message is `{"words", "environ"}` with the descriptor of its output; the answer is the number of the process.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback

NEEDED = (
    "dynamo.worker.main",
    "dynamo.engines.llamacpp.engine",
    "dynamo.engines.mocker.engine",
    "dynamo.llm.register",
    "dynamo.frontend.server",
)
DIE_WITH_PARENT = 1
"""The kernel's PR_SET_PDEATHSIG."""


def main(path: str) -> None:
    for name in NEEDED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("forking", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                message, descriptors, *_ = socket.recv_fds(connection, 1 << 16, 1)
                if not (pid := os.fork()):
                    listener.close()
                    become(json.loads(message), descriptors[0])
                os.close(descriptors[0])
                connection.sendall(b"%d" % pid)


def become(message: dict[str, object], output: int) -> None:
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(message["environ"])  # type: ignore[call-overload]
    sys.argv = list(message["words"])  # type: ignore[call-overload]
    code = 0
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
