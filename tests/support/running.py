"""dynamo-run as a user starts it: a real process, its standard error read line by line, and a place of its own."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import PATIENCE

SOURCE = Path(__file__).parents[2] / "src"
RUN = [sys.executable, "-m", "dynamo.cli.main"]
KEPT = ("PATH", "LANG", "TMPDIR", "ETCD_UNSUPPORTED_ARCH", "COVERAGE_PROCESS_CONFIG")


def environment(place: Path, **more: str) -> dict[str, str]:
    """Nothing of the machine's own: no hub, no services, files only under `place`."""
    keep = {name: os.environ[name] for name in KEPT if name in os.environ}
    return keep | {
        "PYTHONPATH": str(SOURCE),
        "HOME": str(place),
        "XDG_STATE_HOME": str(place / "state"),
        "DYN_FILE_KV": str(place / "discovery"),
        "DYN_TOKEN_ECHO_DELAY_MS": "0",
        "HF_HUB_OFFLINE": "1",
        "TERM": "xterm-256color",
        **more,
    }


def run(
    place: Path, *words: str, input: str | bytes = b"", program: list[str] | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    data = input.encode() if isinstance(input, str) else input
    return subprocess.run(
        [*(program or RUN), *words],
        input=data,
        capture_output=True,
        cwd=place,
        env=environment(place, **env),
        timeout=PATIENCE,
        check=False,
    )


class Process:
    """One that goes on running; `line_with` waits for what it says on standard error."""

    def __init__(self, place: Path, *words: str, program: list[str] | None = None, **env: str) -> None:
        self.popen = subprocess.Popen(
            [*(program or RUN), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=place,
            env=environment(place, **env),
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.said: list[str] = []

    def _read(self) -> None:
        assert self.popen.stderr
        for line in self.popen.stderr:
            self._lines.put(line.decode().rstrip("\n"))
        self._lines.put(None)

    def line_with(self, text: str) -> str:
        while True:
            line = self._lines.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"it ended without saying '{text}':\n" + "\n".join(self.said))
            self.said.append(line)
            if text in line:
                return line

    def rest(self) -> list[str]:
        """What it said after the lines that were waited for, once it has ended."""
        found = []
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            found.append(line)
        return found

    def url(self) -> str:
        return self.line_with("serving on http").rpartition(" ")[2]

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.popen.terminate()
        return self.wait()

    def wait(self) -> int:
        code = self.popen.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)
        return code

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.wait()
        assert self.popen.stderr
        self.popen.stderr.close()


@contextmanager
def running(place: Path, *words: str, program: list[str] | None = None, **env: str) -> Iterator[Process]:
    process = Process(place, *words, program=program, **env)
    try:
        yield process
    finally:
        process.close()
