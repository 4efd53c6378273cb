"""What it costs to follow the workers of a namespace through Kubernetes: `python benchmarks/kubernetes_discovery.py`.

Starts the cluster of `make test-kubernetes` (root), writes the objects of many pods, and follows them as a frontend
does. Objects and readiness are scripted; the API server is real.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.resources import ENDPOINT_SLICES, WORKER_METADATA
from dynamo.runtime.discovery import Delete, Put, Synced
from dynamo.runtime.discovery.kubernetes import KubernetesConfig, KubernetesDiscovery
from dynamo.runtime.discovery.kubernetes.data import to_data
from support.cluster.running import Cluster, why_not
from support.cluster.workloads import DEFINITION, DISCOVERED

PODS, CHANGING = 200, 50
QUIET_SECONDS = 30.0
CARD = json.dumps({"name": "tiny", "filler": "x" * 8000}).encode()
"""As large as that of a model with a long chat template."""


class Writer:
    """Many pods, as their workers and the control plane would write them."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def write(self, number: int, round_: int) -> None:
        named = {"namespace": "ns", "component": "backend", "endpoint": "generate", "instance_id": number + 1}
        instance = {**named, "transport": "tcp", "address": f"10.0.0.1:{1000 + round_}"}
        path = f"ns/backend/generate/{number + 1:x}"
        data = to_data({f"v1/instances/{path}": json.dumps(instance).encode(), f"v1/mdc/{path}": CARD})
        await self._api.apply(WORKER_METADATA, f"pod-{number}", {"spec": {"data": data}}, manager="benchmark")

    async def set_ready(self, unready: range = range(0)) -> None:
        endpoints: list[dict[str, Any]] = [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": number not in unready},
                "targetRef": {"kind": "Pod", "name": f"pod-{number}"},
            }
            for number in range(PODS)
        ]
        body = {"metadata": {"labels": DISCOVERED}, "addressType": "IPv4", "endpoints": endpoints, "ports": []}
        # Replaced whole, as the controller of endpoints does it.
        await self._api.patch(ENDPOINT_SLICES, "pods", {**body, "metadata": {"labels": DISCOVERED}})

    async def create_slice(self) -> None:
        body = {"metadata": {"name": "pods", "labels": DISCOVERED}, "addressType": "IPv4", "endpoints": [], "ports": []}
        await self._api.create(ENDPOINT_SLICES, body)


async def measure() -> dict[str, Any]:
    access = find_access(os.environ)
    figures: dict[str, Any] = {"pods": PODS}
    async with KubernetesApi(access) as api:
        writer = Writer(api)
        await writer.create_slice()
        await asyncio.gather(*(writer.write(number, 0) for number in range(PODS)))
        await writer.set_ready()
    config = KubernetesConfig(access=access, namespace=access.namespace, locks=Path(tempfile.mkdtemp()))
    discovery = KubernetesDiscovery(config)
    await discovery.start()
    begun, cpu = time.monotonic(), time.process_time()
    seen: asyncio.Queue[Put | Delete] = asyncio.Queue()
    synced = asyncio.Event()

    async def follow() -> None:
        async with aclosing(discovery.watch("v1/instances/")) as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    synced.set()
                else:
                    seen.put_nowait(change)

    following = asyncio.create_task(follow())
    await synced.wait()
    figures["first view"] = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu}
    assert seen.qsize() == PODS
    while not seen.empty():
        seen.get_nowait()

    writing = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "write", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert writing.stdin
    assert writing.stdout

    async def order(what: str) -> None:
        assert writing.stdin
        writing.stdin.write(f"{what}\n".encode())
        await writing.stdin.drain()

    calls, cpu, begun = discovery.api_calls, time.process_time(), time.monotonic()
    await asyncio.sleep(QUIET_SECONDS)
    figures["quiet"] = _share(cpu, begun) | {"api_calls": discovery.api_calls - calls}

    cpu, begun = time.process_time(), time.monotonic()
    await order("churn")
    await writing.stdout.readline()
    figures["each pod changes once a minute"] = _share(cpu, begun)
    await asyncio.sleep(1)
    while not seen.empty():
        seen.get_nowait()

    for what in ("objects", "unready", "ready"):
        begun = time.monotonic()
        await order(what)
        for _ in range(CHANGING):
            await seen.get()
        figures[f"{CHANGING} pods: {what}"] = {"seen_after_seconds": time.monotonic() - begun}
        await writing.stdout.readline()
    writing.stdin.close()
    await writing.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await discovery.close()
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def _share(cpu: float, begun: float) -> dict[str, float]:
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "percent_of_a_core": 100 * (time.process_time() - cpu) / seconds}


async def write() -> None:
    """The other side, a process of its own: its work is not the follower's."""
    async with KubernetesApi(find_access(os.environ)) as api:
        writer = Writer(api)
        for round_, order in enumerate(iter(sys.stdin.readline, ""), 1):
            match order.strip():
                case "churn":
                    for number in range(PODS // 2):
                        await writer.write(number, round_)
                        await asyncio.sleep(60 / PODS)
                case "objects":
                    await asyncio.gather(*(writer.write(number, round_) for number in range(CHANGING)))
                case "unready":
                    await writer.set_ready(range(CHANGING))
                case "ready":
                    await writer.set_ready()
            print("done", flush=True)


def main() -> None:
    if why := why_not():
        raise SystemExit(f"no cluster: {why}")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "cluster") as cluster:
        cluster.define(DEFINITION.read_text(), "dynamoworkermetadatas")
        print(cluster.run(sys.executable, __file__, "measure"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure"]:
            print(json.dumps(asyncio.run(measure()), indent=2))
        case ["write"]:
            asyncio.run(write())
        case _:
            main()
