"""Names of Services inside the cluster: `python -m support.cluster.dns SERVER TOKEN CA ADDRESS`, A records only."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.resources import Resource
from dynamo.kubernetes.watch import Changed, ObjectRemoved, Replaced, ResourceWatch, SeenObject, Unreadable

SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
TTL = 5

Objects = dict[tuple[str, str], dict[str, Any]]


class Names:
    def __init__(self) -> None:
        self.services: Objects = {}
        self.endpoints: Objects = {}

    def find(self, name: str) -> list[str]:
        """Addresses of `service.namespace.svc.cluster.local`, or of `host.` before it where the Service is headless."""
        *front, svc, cluster, local = name.lower().rstrip(".").split(".")
        if (svc, cluster, local) != ("svc", "cluster", "local") or len(front) < 2:
            return []
        *host, service, namespace = front
        if (found := self.services.get((namespace, service))) is None:
            return []
        if found["spec"].get("clusterIP") not in (None, "None", ""):
            return [found["spec"]["clusterIP"]]
        unready = found["spec"].get("publishNotReadyAddresses")
        addresses: list[dict[str, str]] = []
        for subset in self.endpoints.get((namespace, service), {}).get("subsets") or []:
            addresses += subset.get("addresses") or []
            addresses += (subset.get("notReadyAddresses") or []) if unready else []
        return [each["ip"] for each in addresses if not host or each.get("hostname") == host[0]]


class Server(asyncio.DatagramProtocol):
    def __init__(self, names: Names) -> None:
        self._names = names
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        assert self._transport
        self._transport.sendto(self._answer(data), addr)

    def _answer(self, query: bytes) -> bytes:
        at, labels = 12, []
        while size := query[at]:
            labels.append(query[at + 1 : at + 1 + size].decode("ascii", "replace"))
            at += size + 1
        end = at + 5
        (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
        addresses = self._names.find(".".join(labels))
        answers = addresses if kind == 1 else []
        flags = 0x8580 | (0 if addresses else 3)
        head = query[:2] + struct.pack(">HHHHH", flags, 1, len(answers), 0, 0)
        records = (
            b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, TTL, 4) + socket.inet_aton(each) for each in answers
        )  # fmt: skip
        return head + query[12:end] + b"".join(records)


def put(seen: SeenObject[dict[str, Any]], into: Objects) -> None:
    assert not isinstance(seen.object, Unreadable)
    into[seen.metadata.namespace, seen.metadata.name] = seen.object


async def follow(api: KubernetesApi, resource: Resource, into: Objects) -> None:
    watch = ResourceWatch(api, resource, dict, namespace="")
    async with aclosing(watch.changes()) as changes:
        async for change in changes:
            match change:
                case Replaced(objects):
                    into.clear()
                    for seen in objects:
                        put(seen, into)
                case Changed(seen):
                    put(seen, into)
                case ObjectRemoved(metadata):
                    into.pop((metadata.namespace, metadata.name), None)


async def main(server: str, token: str, ca: str, address: str) -> None:
    names = Names()
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: Server(names), (address, 53))
    access = ClusterAccess(server=server, origin="the cluster's administrator", ca=Path(ca), token=token.encode())
    async with KubernetesApi(access) as api, asyncio.TaskGroup() as following:
        following.create_task(follow(api, SERVICES, names.services))
        following.create_task(follow(api, ENDPOINTS, names.endpoints))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
