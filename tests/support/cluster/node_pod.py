"""One pod on a stand-in node: its containers as processes, restarted as its policy says, and its status."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import KubernetesError
from dynamo.kubernetes.resources import PODS
from support.cluster.probes import Probes
from support.cluster.sandbox import Sandbox, end_group
from support.cluster.volumes import PodFields, PodSources, environment, expanded, write_volumes

Object = dict[str, Any]

_FIRST_PAUSE, _LAST_PAUSE = 0.2, 30.0
_WELL_AFTER = 60.0
"""Seconds after which a container that ends has not failed at its start."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ContainerState(Struct):
    """What the pod's status says of one container."""

    current: Object
    ready: bool = False
    restarts: int = 0
    last: Object = {}


class NodePod:
    """From its assignment to the node until `stop`."""

    def __init__(self, api: KubernetesApi, pod: Object, fields: PodFields, link: str, folder: Path, path: str) -> None:
        self._api = api
        self.pod = pod
        self._fields = fields
        self._link = link
        self.folder = folder
        self._path = path
        self._states: dict[str, ContainerState] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._sandbox: Sandbox | None = None
        self._sources = PodSources(api, fields)
        self._volumes: dict[str, Path] = {}
        self._started = now()
        self._variables: dict[str, dict[str, str]] = {}
        self.ending = False
        self._changed = asyncio.Event()
        self._running = asyncio.create_task(self._run())
        self._reporting = asyncio.create_task(self._report())

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    async def _run(self) -> None:
        spec = self.pod["spec"]
        try:
            self.folder.mkdir(parents=True)
            hostname = spec.get("hostname") or self.name
            self._sandbox = await Sandbox.make(hostname, self._fields.ip, self._fields.host_ip, self._link)
            self._volumes = await write_volumes(self._sources, self.folder / "volumes")
            for container in spec.get("initContainers") or []:
                while await self._once(container, is_init=True) != 0:
                    if spec.get("restartPolicy") == "Never":
                        return
                    await asyncio.sleep(2)
            async with asyncio.TaskGroup() as containers:
                for container in spec["containers"]:
                    containers.create_task(self._keep(container))
        except (KubernetesError, OSError, KeyError, ExceptionGroup) as error:
            print(f"pod {self.name}: {error!r}", flush=True)
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            waiting = {"reason": "CreateContainerConfigError", "message": str(cause)}
            for container in spec["containers"]:
                self._states[container["name"]] = ContainerState({"waiting": waiting})
            self._changed.set()

    async def _keep(self, container: Object) -> None:
        policy, pause = self.pod["spec"].get("restartPolicy", "Always"), _FIRST_PAUSE
        while not self.ending:
            begun = time.monotonic()
            code = await self._once(container)
            if self.ending or policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            state = self._states[container["name"]]
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            self._set(container, ContainerState(waiting, False, state.restarts + 1, state.current))
            if time.monotonic() - begun > _WELL_AFTER:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    async def _once(self, container: Object, is_init: bool = False) -> int:
        """Run the container's command to its end, with its probes."""
        name = container["name"]
        assert self._sandbox
        variables = self._variables[name] = await environment(self._sources, container, self._path)
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        argv = [expanded(word, variables) for word in words]
        log = self.folder / f"{name}.log"
        process = await self._sandbox.start(self.pod, container, variables, argv, self._volumes, log)
        self._processes[name] = process
        before = self._states.get(name) or ContainerState({})
        begun = now()
        self._set(container, ContainerState({"running": {"startedAt": begun}}, False, before.restarts, before.last))
        probes = Probes(
            container, self._sandbox.ip, process.pid, lambda ready: self._set_ready(container, ready),
            lambda: end_group(process, signal.SIGTERM),
        )  # fmt: skip
        probing = None if is_init else asyncio.create_task(probes.run())
        try:
            code = await process.wait()
        finally:
            if probing:
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
        done = {
            "exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed",
            "startedAt": begun, "finishedAt": now(),
        }  # fmt: skip
        if code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            done["message"] = log.read_text(errors="replace")[-2048:]
        self._set(container, ContainerState({"terminated": done}, is_init and code == 0, before.restarts, before.last))
        return code

    def _set(self, container: Object, state: ContainerState) -> None:
        self._states[container["name"]] = state
        self._changed.set()

    def _set_ready(self, container: Object, ready: bool) -> None:
        state = self._states[container["name"]]
        if "running" in state.current and state.ready != ready:
            state.ready = ready
            self._changed.set()

    async def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after the grace in seconds; then the pod's object is deleted for good."""
        self.ending = True
        self._changed.set()
        begun = time.monotonic()
        await self._run_pre_stop(grace)
        grace = max(0.0, grace - (time.monotonic() - begun))
        living = [process for process in self._processes.values() if process.returncode is None]
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if living:
            await asyncio.wait([asyncio.create_task(process.wait()) for process in living], timeout=grace)
        self.kill()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._reporting.cancel()
        await asyncio.gather(self._reporting, return_exceptions=True)
        if self._sandbox:
            await self._sandbox.close()
        with contextlib.suppress(KubernetesError):
            await self._api.delete(PODS, self.name, namespace=self._fields.namespace, uid=self.uid, grace=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _run_pre_stop(self, grace: float) -> None:
        """The commands that containers run before their SIGTERM, in their place in the pod."""
        running = []
        for container in self.pod["spec"]["containers"]:
            hook = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec")
            process = self._processes.get(container["name"])
            if hook and self._sandbox and process and process.returncode is None:
                # As it was at the start: a Secret of it may be gone before the pod.
                variables = self._variables[container["name"]]
                log = self.folder / f"{container['name']}.stop.log"
                running.append(
                    await self._sandbox.start(self.pod, container, variables, hook["command"], self._volumes, log)
                )
        if running:
            await asyncio.wait([asyncio.create_task(each.wait()) for each in running], timeout=grace)

    def kill(self) -> None:
        for process in self._processes.values():
            end_group(process, signal.SIGKILL)

    async def _report(self) -> None:
        reported: Object | None = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            status = self._status()
            if status == reported:
                continue
            body = {"metadata": {"uid": self.uid}, "status": status}
            try:
                await self._api.patch(
                    PODS, self.name, body, kind="strategic", subresource="status", namespace=self._fields.namespace
                )
                reported = status
                self.pod["status"] = status
            except (KubernetesError, aiohttp.ClientError) as error:
                print(f"status of {self.name}: {error}", flush=True)
                await asyncio.sleep(0.2)
                self._changed.set()

    def _status(self) -> Object:
        spec = self.pod["spec"]
        inits = [self._container_status(each) for each in spec.get("initContainers") or []]
        mains = [self._container_status(each) for each in spec["containers"]]
        ready = all(each["ready"] for each in mains)
        conditions = {
            "Initialized": all(each["ready"] for each in inits), "Ready": ready, "ContainersReady": ready,
            "PodScheduled": True,
        }  # fmt: skip
        return {
            "phase": _phase(mains),
            "hostIP": self._fields.host_ip,
            "podIP": self._fields.ip,
            "podIPs": [{"ip": self._fields.ip}],
            "startTime": self._started,
            "conditions": [self._condition(kind, holds) for kind, holds in conditions.items()],
            "containerStatuses": mains,
            "initContainerStatuses": inits,
        }

    def _container_status(self, container: Object) -> Object:
        name = container["name"]
        reason = "PodInitializing" if self.pod["spec"].get("initContainers") else "ContainerCreating"
        state = self._states.get(name) or ContainerState({"waiting": {"reason": reason}})
        process = self._processes.get(name)
        return {
            "name": name,
            "image": container["image"],
            "imageID": container["image"],
            "containerID": f"process://{process.pid}" if process else "",
            "ready": state.ready,
            "started": "running" in state.current,
            "restartCount": state.restarts,
            "state": state.current,
            "lastState": state.last,
        }

    def _condition(self, kind: str, holds: bool) -> Object:
        value = "True" if holds else "False"
        known = {each["type"]: each for each in self.pod.get("status", {}).get("conditions") or []}.get(kind)
        since = known["lastTransitionTime"] if known and known["status"] == value else None
        return {"type": kind, "status": value, "lastTransitionTime": since or now()}


def _phase(containers: list[Object]) -> str:
    states = [each["state"] for each in containers]
    if all("terminated" in state for state in states):
        return "Succeeded" if all(state["terminated"]["exitCode"] == 0 for state in states) else "Failed"
    begun = any("waiting" not in state for state in states) or any(each["restartCount"] for each in containers)
    return "Running" if begun else "Pending"
