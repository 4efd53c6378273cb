"""A stand-in for a kubelet: `python -m support.cluster.node SERVER TOKEN CA NAME FOLDER`.

It runs the commands of the pods of its node as processes of this machine, in networks of their own. It has real
probes, volumes, projected tokens, restarts and graces; it has no images, limits, hooks, exec and port-forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.errors import ApiRefusal, KubernetesError
from dynamo.kubernetes.resources import PODS, Resource
from dynamo.kubernetes.watch import Changed, ObjectRemoved, Replaced, ResourceWatch, SeenObject, Unreadable
from support.cluster.node_pod import NodePod, now
from support.cluster.places import KUBELET_PORT, POD_NETWORK
from support.cluster.volumes import PodFields

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
LEASE_NAMESPACE = "kube-node-lease"
BEAT = 5.0
GPUS = "8"

Object = dict[str, Any]


class Node:
    def __init__(self, api: KubernetesApi, name: str, folder: Path) -> None:
        self._api = api
        self.name = name
        self._folder = folder
        self._index = sum(name.encode()) % 200 + 1
        self.address = f"{POD_NETWORK}.{self._index}.1"
        self._numbers = itertools.count(2)
        self._pods: dict[str, NodePod] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await self._register()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._follow())

    def kill_pods(self) -> None:
        for pod in self._pods.values():
            pod.kill()

    async def _register(self) -> None:
        labels = {
            "kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"
        }  # fmt: skip
        with contextlib.suppress(ApiRefusal):
            await self._api.create(NODES, {"metadata": {"name": self.name, "labels": labels}})
        node: Object = await self._api.get(NODES, self.name, dict)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node["metadata"]["uid"]}
        lease = {
            "metadata": {"name": self.name, "ownerReferences": [owner]},
            "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 40},
        }
        with contextlib.suppress(ApiRefusal):
            await self._api.create(LEASES, lease, namespace=LEASE_NAMESPACE)

    async def _beat(self) -> None:
        """Say that the node is there, as its controller expects."""
        for beat in itertools.count():
            with contextlib.suppress(KubernetesError):
                if beat % 6 == 0:
                    status = {"status": self._status()}
                    await self._api.patch(NODES, self.name, status, kind="strategic", subresource="status")
                renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                body = {"spec": {"renewTime": renewed}}
                await self._api.patch(LEASES, self.name, body, namespace=LEASE_NAMESPACE)
            await asyncio.sleep(BEAT)

    def _status(self) -> Object:
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi", "nvidia.com/gpu": GPUS}
        about = {
            "kubeletVersion": "v1.20.2-standin", "operatingSystem": "linux", "architecture": "amd64", "bootID": "",
            "containerRuntimeVersion": "process://1", "kernelVersion": os.uname().release, "kubeProxyVersion": "",
            "machineID": "", "osImage": "", "systemUUID": "",
        }  # fmt: skip
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        return {
            "capacity": room,
            "allocatable": room,
            "addresses": [
                {"type": "InternalIP", "address": self.address},
                {"type": "Hostname", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "nodeInfo": about,
            "conditions": [{**ready, "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
        }

    async def _follow(self) -> None:
        fields = f"spec.nodeName={self.name}"
        watch = ResourceWatch(self._api, PODS, dict, namespace="", fields=fields)
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Replaced(objects):
                        known = {seen.metadata.uid for seen in objects}
                        for seen in objects:
                            self._see(seen)
                        for uid in self._pods.keys() - known:
                            self._end(self._pods[uid], 0)
                    case Changed(seen):
                        self._see(seen)
                    case ObjectRemoved(metadata):
                        if pod := self._pods.get(metadata.uid):
                            self._end(pod, 0)

    def _see(self, seen: SeenObject[Object]) -> None:
        assert not isinstance(seen.object, Unreadable)
        found, uid = seen.object, seen.metadata.uid
        known = self._pods.get(uid)
        if "deletionTimestamp" in found["metadata"]:
            self._end(known or self._start(found), found["metadata"].get("deletionGracePeriodSeconds", 30))
        elif known:
            known.pod["metadata"] = found["metadata"]
        elif found.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            self._start(found)

    def _start(self, found: Object) -> NodePod:
        number = next(self._numbers)
        fields = PodFields(found, self.name, f"{POD_NETWORK}.{self._index}.{number}", self.address)
        uid, path = found["metadata"]["uid"], os.environ["PATH"]
        pod = NodePod(self._api, found, fields, f"v{self._index}x{number}", self._folder / uid, path)
        self._pods[uid] = pod
        return pod

    def _end(self, pod: NodePod, grace: float) -> None:
        if not pod.ending:
            pod.ending = True
            self._own(self._stop(pod, grace))

    async def _stop(self, pod: NodePod, grace: float) -> None:
        await pod.stop(grace)
        del self._pods[pod.uid]

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        found = request.match_info
        for pod in self._pods.values():
            if (pod.pod["metadata"]["namespace"], pod.name) == (found["namespace"], found["pod"]):
                return await _log(request, pod, pod.folder / f"{found['container']}.log")
        raise web.HTTPNotFound


async def _log(request: web.Request, pod: NodePod, file: Path) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await answer.prepare(request)
    with file.open("rb") as opened:
        while True:
            if data := opened.read():
                await answer.write(data)
            if request.query.get("follow") != "true" or pod.ending:
                return answer
            await asyncio.sleep(0.2)


async def serve_logs(node: Node, folder: Path) -> web.AppRunner:
    """For `kubectl logs`, which the API server asks the node for."""
    certificate, key = folder / "node.crt", folder / "node.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=node"],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", node.logs)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, node.address, KUBELET_PORT, ssl_context=tls).start()
    return runner


async def main(server: str, token: str, ca: str, name: str, folder: str) -> None:
    place = Path(folder) / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    access = ClusterAccess(server=server, origin="the cluster's administrator", ca=Path(ca), token=token.encode())
    async with KubernetesApi(access) as api:
        node = Node(api, name, place)
        subprocess.run(["ip", "addr", "add", f"{node.address}/32", "dev", "lo"], check=True)
        runner = await serve_logs(node, place)
        running = asyncio.create_task(node.run())
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, running.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await running
        finally:
            node.kill_pods()
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
