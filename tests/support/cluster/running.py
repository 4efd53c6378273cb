"""A cluster as tests use it: started once, with `kubectl` and commands inside its network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from support.cluster.places import BIN, NEEDED, ROOT, has
from support.waiting import until_sync

Object = dict[str, Any]


def why_not() -> str | None:
    """Why no cluster can run here; None where one can."""
    if not has(*NEEDED):
        return "`tests/kubernetes/install` gets the control plane"
    probe = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "ip", "link", "set", "lo", "up"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "this machine cannot make network and PID namespaces"
    return None


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
                ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                 sys.executable, "-m", "support.cluster.control_plane", str(self.folder), *self._nodes],
                env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
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
        assert self._process
        [child] = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return ["nsenter", "-t", child, "--net", "--"]

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def run(self, *words: str, text: str | None = None) -> str:
        """The output of a command in the cluster's network; fails with what it said."""
        done = subprocess.run(
            [*self.inside, *words], input=text, capture_output=True, text=True, check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return self.run(str(BIN / "kubectl"), *words, text=text)

    def apply(self, documents: str, namespace: str = "default") -> None:
        # kubectl would check custom resources against the old server's schemas.
        self.kubectl("apply", "--validate=false", "-n", namespace, "-f", "-", text=documents)

    def get(self, *words: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def logs(self, pod: str, namespace: str = "default") -> str:
        return self.kubectl("logs", "-n", namespace, pod)
