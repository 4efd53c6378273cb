"""A grammar is compiled in a process of its own before an engine compiles it: some end the process that does."""

from __future__ import annotations

import hashlib
import json
import logging
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

from dynamo.protocols.errors import WorkerBusy

log = logging.getLogger(__name__)

_PROGRAM = Path(__file__).with_name("grammar_trial_process.py")
_KEPT = 4096
"""Verdicts that are kept."""
_PATIENCE_SECONDS = 60.0
"""The processor time of a trial is limited far below; a process that takes longer was stopped."""
_OF_ITS_GRAMMAR = {
    -number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGPROF)
}
"""How the process ends by what it compiles; somebody else may have killed it for other reasons."""


class CannotCompile(ValueError):
    """A grammar that killed its compiler, or exceeded its limits."""


class GrammarTrial:
    """Starts its process with the first grammar, and again after one that killed it. Its methods may block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._passed: OrderedDict[bytes, bool] = OrderedDict()
        self._closed = False

    def check(self, grammar: str) -> None:
        """Raises CannotCompile for a grammar that no engine should compile, and WorkerBusy if none can be tried."""
        key = hashlib.blake2b(grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            passed = self._passed.pop(key, None)
            if passed is None:
                passed = self._try(grammar)
            self._passed[key] = passed
            if len(self._passed) > _KEPT:
                self._passed.popitem(last=False)
        if not passed:
            raise CannotCompile("this constraint needs more stack, memory or time to compile than is allowed")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _try(self, grammar: str) -> bool:
        if self._closed:
            raise WorkerBusy("the engine is closing")
        try:
            process = self._process or self._start()
        except OSError as error:
            raise WorkerBusy(f"the process that tries grammars cannot be started: {error}") from error
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(grammar).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            self._end()
            raise WorkerBusy("the process that tries grammars has ended") from None
        answer = select.poll()
        answer.register(process.stdout, select.POLLIN | select.POLLHUP)
        if not answer.poll(_PATIENCE_SECONDS * 1000):
            self._end()
            raise WorkerBusy("the process that tries grammars does not answer")
        if process.stdout.readline():
            return True
        status = self._end()
        if status not in _OF_ITS_GRAMMAR:
            raise WorkerBusy(f"the process that tries grammars ended with status {status}")
        log.warning("a constraint of %d bytes ended the process that tries grammars (%s)", len(grammar), status)
        return False

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._process = process
        return process

    def _end(self) -> int | None:
        """Returns the status with which it ended by itself, if it has."""
        process, self._process = self._process, None
        if process is None:
            return None
        # One that died by itself keeps its own status.
        process.kill()
        process.communicate()
        return process.returncode
