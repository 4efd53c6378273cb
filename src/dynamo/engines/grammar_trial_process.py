"""A process that compiles grammars within limits, so that one that kills its compiler kills nothing else.

It is started by its file: a grammar on each line of its input, as JSON, and an empty line of output for each that was
compiled. It imports nothing of this package, which would take longer than most grammars.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading
from typing import Any

import llguidance

STACK_BYTES = 1 << 20
"""Half of what a thread of mistral.rs has, an eighth of one of Python's: what passes here passes there."""
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 1.0
"""Five times what the largest allowed schema takes."""


def main() -> None:
    # The owner ends this process by closing its input, also where a terminal interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    threading.stack_size(STACK_BYTES)
    bytes_as_tokens = llguidance.LLTokenizer("byte")
    for line in sys.stdin.buffer:
        # At its end SIGPROF ends the process.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        thread = threading.Thread(target=_compile, args=(json.loads(line), bytes_as_tokens))
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


def _compile(grammar: str, vocabulary: Any) -> None:
    # Whether it is valid is for the engine to say.
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()


if __name__ == "__main__":
    main()
