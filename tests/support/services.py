"""Real etcd and NATS servers on free ports, as child processes that tests may stop and start again."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from support.waiting import until_sync

_given: set[int] = set()


def free_port() -> int:
    """A port that stays free while its server is stopped: outside the range the kernel takes ports from."""
    while True:
        port = random.SystemRandom().randrange(10_240, 32_768)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def binary(name: str) -> str:
    """A program of the virtual environment the tests run in."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is not installed: pip install '.[services]'"
    return found


class Service:
    """A server process on one port. `stop` and `start` keep the port; `wipe` forgets the data in between."""

    def __init__(self, data: Path, port: int, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        """`inside` is the beginning of a command that runs the rest of it where `address` is."""
        self.data = data
        self.port = port
        self.address = address
        self.inside = inside
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        log = (self.data.parent / f"{self.data.name}.log").open("ab")
        self.process = subprocess.Popen(
            [*self.inside, *self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        until_sync(self._listening)

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wipe(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)

    def _listening(self) -> bool:
        assert self.process
        assert self.process.poll() is None, f"{self.command()[0]} ended: see {self.data}.log"
        if self.inside:
            probe = f"import socket; socket.create_connection(('{self.address}', {self.port}), timeout=0.2)"
            words = [*self.inside, sys.executable, "-I", "-c", probe]
            return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=0.2):
            return True
        return False


class Etcd(Service):
    def __init__(self, data: Path, port: int, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        super().__init__(data, port, address, inside)
        self.peer_port = free_port()

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def command(self) -> Sequence[str]:
        peer = f"http://127.0.0.1:{self.peer_port}"
        return [
            binary("etcd"), "--data-dir", str(self.data), "--log-level", "error",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        ]  # fmt: skip


class Nats(Service):
    @property
    def url(self) -> str:
        return f"nats://{self.address}:{self.port}"

    def command(self) -> Sequence[str]:
        return [binary("nats-server"), "--addr", self.address, "--port", str(self.port)]
