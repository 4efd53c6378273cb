"""Combinations of discovery and request plane, with real etcd and NATS servers where needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from processes import REPOSITORY

sys.path.append(str(REPOSITORY / "tests"))

from support.services import Etcd, Nats, free_port


class Network(Struct, frozen=True):
    """`discovery` is the value of the flag; `environ` has the addresses of the servers."""

    name: str
    discovery: str
    environ: dict[str, str]


@contextmanager
def networks(folder: Path, *names: str) -> Iterator[list[Network]]:
    """For names such as `file+tcp`, `etcd+tcp` and `etcd+nats`."""
    etcd = Etcd(folder / "etcd", free_port())
    nats = Nats(folder / "nats", free_port())
    needed = [server for server, word in ((etcd, "etcd"), (nats, "nats")) if any(word in name for name in names)]
    try:
        for server in needed:
            server.start()
        found = []
        for name in names:
            discovery, _, plane = name.partition("+")
            environ = {"DYN_DISCOVERY_BACKEND": discovery, "DYN_REQUEST_PLANE": plane}
            if discovery == "etcd":
                environ["ETCD_ENDPOINTS"] = etcd.url
            if plane == "nats":
                environ |= {"NATS_SERVER": nats.url, "DYN_EVENT_PLANE": "nats"}
            found.append(Network(name, discovery, environ))
        yield found
    finally:
        for server in needed:
            server.stop()
