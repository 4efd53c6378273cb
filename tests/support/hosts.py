"""Two hosts on this machine: network namespaces with a cable between them, and no way to anywhere else."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE

REQUEST = """
import json, sys, urllib.error, urllib.request
url, body = sys.argv[1], sys.stdin.buffer.read()
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, body or None, {"Content-Type": "application/json"}))
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, json.load(answer)]))
"""


class Host:
    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def inside(self, *words: str) -> list[str]:
        """The command that runs `words` on this host; its process becomes theirs, so signals reach them."""
        return ["ip", "netns", "exec", self.name, *words]

    def inside_without(self, folder: Path, *words: str, size: str = "1m") -> list[str]:
        """As `inside`, but `folder` is an empty disk of this size there: what it holds elsewhere cannot be seen."""
        mount = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
        return self.inside("unshare", "--mount", "sh", "-c", mount, str(folder), *words)

    def http(self, url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and JSON of a request made on this host; with a body it is a POST."""
        done = subprocess.run(
            self.inside(sys.executable, "-I", "-c", REQUEST, url),
            input=json.dumps(body).encode() if body else b"",
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        status, answer = json.loads(done.stdout)
        return status, answer


@contextmanager
def partition(host: Host) -> Iterator[None]:
    """The cable is cut at this host: the other one still has its address, and its packets are lost."""
    _ip("-n", host.name, "link", "set", "cable", "down")
    try:
        yield
    finally:
        _ip("-n", host.name, "link", "set", "cable", "up")


@contextmanager
def this_thread_on(host: Host) -> Iterator[None]:
    """Sockets and processes that this thread makes are on that host."""
    with open("/proc/thread-self/ns/net", "rb") as here, open(f"/run/netns/{host.name}", "rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000):  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def cannot_make_hosts() -> str:
    """Why there can be no two hosts here, or nothing."""
    return "" if os.geteuid() == 0 and shutil.which("ip") else "network namespaces need root and the program 'ip'"


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise AssertionError(
            "two hosts are network namespaces, and making them needs root and the program 'ip' "
            "(Debian: apt-get install iproute2); `make test` leaves these tests out"
        )
    run = secrets.token_hex(3)
    one, two = Host(f"dynamo-{run}-a", "10.77.0.1"), Host(f"dynamo-{run}-b", "10.77.0.2")
    made: list[Host] = []
    try:
        for host in (one, two):
            _ip("netns", "add", host.name)
            made.append(host)
        _ip("-n", one.name, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", two.name)
        for host in (one, two):
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                _ip("-n", host.name, "link", "set", link, "up")
        yield one, two
    finally:
        for host in made:
            _ip("netns", "del", host.name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode().strip()
        raise AssertionError(f"this machine cannot make two hosts: `ip {' '.join(words)}` says {why!r}")
