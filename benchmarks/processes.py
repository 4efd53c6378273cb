"""Starts, awaits, measures and stops the processes of a benchmark."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

REPOSITORY = Path(__file__).parent.parent
_PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Child:
    """One started process; its CPU time and memory include those of its own children."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu(self) -> float:
        """CPU seconds so far, exact to the scheduler's nanoseconds, including threads that have ended."""
        return sum(_cpu_clock(pid) for pid in _tree(self.pid))

    def rss(self) -> int:
        """Resident bytes."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE for pid in _tree(self.pid))

    def check(self) -> None:
        if self.process.poll() is not None:
            raise SystemExit(f"{self.name} ended with {self.process.returncode}:\n{self.output()}")

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


class Stack:
    """The processes of one measurement and their discovery folder; leaving the context stops them."""

    def __init__(
        self, folder: Path, python: str = sys.executable, *, ours: bool = True, environ: dict[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.python = python
        self.url = ""
        self.children: dict[str, Child] = {}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "ETCD_", "NATS_", "PYTHONPATH"))}
        self.environ = {
            **inherited,
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_LOG": "warn",
            "HF_HUB_OFFLINE": "1",
            **({"PYTHONPATH": str(REPOSITORY / "src")} if ours else {}),
            **(environ or {}),
        }

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self, name: str, *words: str, python: str | None = None) -> Child:
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [python or self.python, *words],
                env=self.environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.children[name] = Child(name, process, log)
        return self.children[name]

    def frontend(self, *flags: str, discovery: str = "file", name: str = "frontend") -> Child:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        listen = ("--http-host", "127.0.0.1", "--http-port", str(port), "--discovery-backend", discovery)
        return self.start(name, "-m", "dynamo.frontend", *listen, *flags)

    def mocker(self, model: Path, name: str, *flags: str, discovery: str = "file") -> Child:
        where = ("--model-path", str(model), "--model-name", name, "--discovery-backend", discovery)
        return self.start("mocker", "-m", "dynamo.mocker", *where, *flags)

    def get(self, path: str) -> bytes:
        """The body of a GET, or empty if it fails: callers poll for a server to come up."""
        for child in self.children.values():
            child.check()
        return fetch(self.url, path)

    def until(self, path: str, text: bytes, *, seconds: float = 60.0) -> None:
        """Wait until the answer to a GET contains `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.get(path):
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {child.name}\n{child.output()}" for child in self.children.values())
                raise SystemExit(f"{path} never contained {text!r}:\n{logs}")
            time.sleep(0.01)

    def stop(self, *names: str) -> None:
        """Stop these processes, or all."""
        stopping = [self.children.pop(name) for name in names or tuple(self.children)]
        for child in stopping:
            if child.process.poll() is None:
                child.process.terminate()
        for child in stopping:
            try:
                child.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # with an engine's own processes
                child.process.wait()


def machine_busy() -> float:
    """CPU seconds used on all cores since the machine started, including those stolen by its host."""
    user, nice, system, _idle, _iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def fetch(url: str, path: str) -> bytes:
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def metric_total(url: str, name: str) -> float:
    """The sum of a server's metric over all labels; 0 if there is no such metric."""
    lines = fetch(url, "/metrics").decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def _tree(pid: int) -> list[int]:
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                left += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
    return found


def _cpu_clock(pid: int) -> float:
    # Linux's clockid of another process's CPU clock (clock_getcpuclockid); adding up its threads' schedstat would miss
    # the threads that have ended.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0
