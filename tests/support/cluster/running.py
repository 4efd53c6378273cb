"""A cluster as tests use it: started once, with `kubectl` and commands inside its network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from support.cluster.places import ADMIN_TOKEN, BIN, NEEDED, ROOT, SERVER, has
from support.waiting import PATIENCE, until_sync

Object = dict[str, Any]

UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def why_not() -> str | None:
    """Why no cluster can run here; None where one can."""
    if not has(*NEEDED):
        return "`tests/kubernetes/install` gets the control plane"
    probe = [*UNSHARE, "ip", "link", "set", "lo", "up"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "this machine cannot make network and PID namespaces"
    return None


class Asking:
    """Requests that somebody else makes meanwhile."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last = ""
        self._said = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with self._said:
                self._last = line
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    @property
    def answered(self) -> int:
        """So far, failed ones among them."""
        return int(self._last or 0)

    def more(self, count: int) -> None:
        """Wait until this many more were answered, or failed."""
        with self._said:
            until = self.answered + count
            self._said.wait_for(lambda: self._ended or self.answered >= until)
            assert not self._ended

    def end(self) -> Object:
        """How many there were, the texts that came, and what failed."""
        assert self._process.stdin
        self._process.stdin.close()
        self._reader.join()
        summary: Object = json.loads(self._last)
        return summary

    def stop(self) -> None:
        self._process.kill()
        self._reader.join()
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout):
            if each:
                each.close()


class Cluster:
    """In a network and PID namespace of its own: killing its first process ends everything, mounts included."""

    def __init__(self, folder: Path, nodes: Sequence[str] = ("node-a",)) -> None:
        self.folder = folder
        self._nodes = nodes
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = f"{ROOT / 'tests'}:{ROOT / 'src'}"
        with (self.folder / "cluster.log").open("wb") as log:
            self._process = subprocess.Popen(
                # It ends with the tests, also where these are killed.
                ["setpriv", "--pdeathsig", "KILL", *UNSHARE,
                 sys.executable, "-m", "support.cluster.control_plane", str(self.folder), *self._nodes],
                env={**os.environ, "PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until_sync(self._is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process
        if self._process.poll() is not None:
            raise AssertionError((self.folder / "cluster.log").read_text(errors="replace")[-4000:])
        return (self.folder / "ready").exists()

    @property
    def inside(self) -> list[str]:
        """The words before a command that runs in the cluster's network."""
        return ["nsenter", "-t", str(self._first), "--net", "--"]

    @property
    def _first(self) -> int:
        """The first process of the cluster's namespaces."""
        assert self._process
        [child] = _children(self._process.pid)
        return child

    def kill(self, program: str) -> None:
        """The API server and etcd are started again."""
        os.kill(self._process_of(program), signal.SIGKILL)

    @contextmanager
    def paused(self, program: str) -> Iterator[None]:
        """It answers nothing meanwhile, and its connections stay open."""
        pid = self._process_of(program)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _process_of(self, program: str) -> int:
        [pid] = [pid for pid in _children(self._first) if Path(f"/proc/{pid}/comm").read_text().strip() == program]
        return pid

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    server, token = SERVER, ADMIN_TOKEN

    def run(self, *words: str, text: str | None = None) -> str:
        """The output of a command in the cluster's network; fails with what it said."""
        done = self._call(*words, text=text)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def _call(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        path = f"{BIN}:{os.environ['PATH']}"
        return subprocess.run(
            [*self.inside, *words], input=text, capture_output=True, text=True, check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path},
        )  # fmt: skip

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return self.run("kubectl", *words, text=text)

    def apply(self, documents: str, namespace: str = "default") -> None:
        # kubectl would check custom resources against the old server's schemas.
        self.kubectl("apply", "--validate=false", "-n", namespace, "-f", "-", text=documents)

    def define(self, document: str, plural: str) -> None:
        """Apply a CustomResourceDefinition, and wait until its objects are served."""
        self.apply(document)
        # The new server knows it a moment before the old one in front of it does.
        until_sync(lambda: self._call("kubectl", "get", plural).returncode == 0)

    def get(self, *words: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def wait(self, *words: str, namespace: str = "default") -> None:
        self.kubectl("wait", "-n", namespace, f"--timeout={PATIENCE:.0f}s", *words)

    def http(self, url: str, body: Object | None = None) -> Object:
        """The answer, as JSON, of a program in the cluster; with a body the request is a POST."""
        words = ["curl", "--silent", "--show-error", "--fail-with-body", url]
        if body is not None:
            words += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        answer: Object = json.loads(self.run(*words))
        return answer

    @contextmanager
    def asking(
        self, namespace: str, service: str, width: int = 4, how: str = "whole", prompts: int = 1
    ) -> Iterator[Asking]:
        """Greedy completions of a Service's frontends, all the time; for `how` see `support.cluster.asking`."""
        process = subprocess.Popen(
            [*self.inside, sys.executable, "-m", "support.cluster.asking", namespace, service, str(width), how,
             str(prompts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        )  # fmt: skip
        asking = Asking(process)
        try:
            yield asking
        finally:
            asking.stop()

    def addresses(self, app: str, namespace: str) -> list[str]:
        """Those of its pods that are not about to end."""
        pods = self.get("pods", "-n", namespace, "-l", f"app={app}")["items"]
        return [pod["status"]["podIP"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def logs(self, pod: str, namespace: str = "default") -> str:
        return self.kubectl("logs", "-n", namespace, pod)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
