"""Loads the adapters that DynamoModels ask for into every worker of their base model."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Meta, Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import KubernetesError, ObjectNotFound
from dynamo.kubernetes.operator.cache import Key, WatchedKind, itself
from dynamo.kubernetes.operator.kinds import MODELS, SECRETS, labels_of, name_of
from dynamo.kubernetes.operator.queue import DueKeys
from dynamo.kubernetes.operator.reports import Reporter
from dynamo.kubernetes.operator.status import now, ready_condition
from dynamo.kubernetes.operator.stuck import is_ready
from dynamo.kubernetes.render.containers import SYSTEM_PORT
from dynamo.kubernetes.render.target import GRAPH_LABEL, MODEL_LABEL, model_hash
from dynamo.kubernetes.resources import PODS

log = logging.getLogger(__name__)

FINALIZER = "nvidia.com/dynamo-adapter"
_LIMIT_SECONDS = 300.0

Object = Mapping[str, Any]
_Life = tuple[str, int]
"""A pod's uid, and how often its container was started again: what was loaded is gone then."""


class _AdapterSource(Struct, frozen=True):
    uri: str


class _ModelSpec(Struct, frozen=True, rename="camel"):
    model_name: Annotated[str, Meta(min_length=1)]
    base_model_name: str
    model_type: str = "base"
    source: _AdapterSource | None = None


class AdapterController:
    """One for all DynamoModels of its namespaces."""

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None) -> None:
        self._api = api
        self._due = DueKeys()
        self._reporter = Reporter(api)
        self._loaded: dict[Key, dict[_Life, str]] = {}
        self._models = WatchedKind(api, MODELS, itself, self._due.add, namespace=namespace)
        self._pods = WatchedKind(api, PODS, _base_of, self._pods_changed, namespace=namespace, labels=MODEL_LABEL)

    def _pods_changed(self, base: Key) -> None:
        for key, model in self._models.objects.items():
            if (key[0], model_hash(model["spec"]["baseModelName"])) == base:
                self._due.add(key)

    async def run(self) -> None:
        limit = aiohttp.ClientTimeout(total=_LIMIT_SECONDS)
        async with aiohttp.ClientSession(timeout=limit) as session, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._models.follow())
            tasks.create_task(self._pods.follow())
            await self._pods.read.wait()
            while True:
                key = await self._due.next()
                try:
                    if await self._make_true(session, key):
                        self._due.succeeded(key)
                    else:
                        self._due.failed(key)
                except KubernetesError as error:
                    log.warning("DynamoModel %s: %s; trying again", key[1], error)
                    self._due.failed(key)

    async def _make_true(self, session: aiohttp.ClientSession, key: Key) -> bool:
        """Whether every worker that is ready has it."""
        found = self._models.objects.get(key)
        if found is None:
            self._loaded.pop(key, None)
            return True
        spec = msgspec.convert(found["spec"], _ModelSpec)
        pods = [each for each in self._pods.of((key[0], model_hash(spec.base_model_name))) if is_ready(each)]
        if "deletionTimestamp" in found["metadata"]:
            return await self._unload(session, found, spec, pods)
        is_adapter = spec.model_type != "base" and spec.source is not None
        if is_adapter and FINALIZER not in (found["metadata"].get("finalizers") or ()):
            await self._api.patch(
                MODELS, key[1], {"metadata": {"finalizers": [FINALIZER]}}, namespace=key[0]
            )  # fmt: skip
        loaded = self._loaded.setdefault(key, {})
        why: dict[str, str] = {}
        for pod in pods:
            life = _life(pod)
            if is_adapter and spec.source and loaded.get(life) != spec.source.uri:
                body = {"lora_name": spec.model_name, "source": {"uri": spec.source.uri}}
                if told := await self._call(session, pod, "POST", "", body):
                    why[name_of(pod)] = told
                else:
                    loaded[life] = spec.source.uri
        self._loaded[key] = {life: uri for life, uri in loaded.items() if life in map(_life, pods)}
        await self._reporter.status(MODELS, found, _status(found, pods, why))
        return not why

    async def _unload(
        self, session: aiohttp.ClientSession, found: Object, spec: _ModelSpec, pods: list[Object]
    ) -> bool:
        """Workers that cannot be asked do not keep the object: what they have ends with them."""
        key = itself(found)
        for pod in pods:
            if spec.model_type != "base" and (
                told := await self._call(session, pod, "DELETE", f"/{quote(spec.model_name, safe='')}", None)
            ):
                log.info("DynamoModel %s: %s: %s", key[1], name_of(pod), told)
        kept = [each for each in found["metadata"].get("finalizers") or () if each != FINALIZER]
        try:
            await self._api.patch(MODELS, key[1], {"metadata": {"finalizers": kept}}, namespace=key[0])
        except ObjectNotFound:
            pass
        self._loaded.pop(key, None)
        return True

    async def _call(
        self, session: aiohttp.ClientSession, pod: Object, method: str, path: str, body: Mapping[str, Any] | None
    ) -> str:
        """What went wrong; empty where nothing did."""
        token = await self._token(pod["metadata"]["namespace"], labels_of(pod).get(GRAPH_LABEL, ""))
        headers = {"Authorization": f"Bearer {token}"}
        try:
            url = f"{_address(pod)}/v1/loras{path}"
            async with session.request(method, url, json=body, headers=headers) as answer:
                said = (await answer.text())[:300]
                return "" if answer.status < 300 else f"answers {answer.status}: {said}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"cannot be reached: {error or type(error).__name__}"

    async def _token(self, namespace: str, graph: str) -> str:
        secret: dict[str, Any] = await self._api.get(SECRETS, f"{graph}-plane", dict, namespace=namespace)
        return base64.b64decode(secret["data"]["token"]).decode()


def _base_of(pod: Object) -> Key | None:
    found = labels_of(pod).get(MODEL_LABEL)
    return (pod["metadata"]["namespace"], found) if found else None


def _life(pod: Object) -> _Life:
    statuses = pod["status"].get("containerStatuses") or ()
    return pod["metadata"]["uid"], sum(each.get("restartCount", 0) for each in statuses)


def _address(pod: Object) -> str:
    ip = pod["status"]["podIP"]
    return f"http://[{ip}]:{SYSTEM_PORT}" if ":" in ip else f"http://{ip}:{SYSTEM_PORT}"


def _status(found: Object, pods: list[Object], why: Mapping[str, str]) -> dict[str, Any]:
    endpoints = [
        {"address": _address(each), "podName": name_of(each), "ready": name_of(each) not in why} for each in pods
    ]
    ready = sum(each["ready"] is True for each in endpoints)
    told = "; ".join(f"pod {name} {sentence}" for name, sentence in sorted(why.items()))
    if not pods:
        told = "no worker of the base model is ready; components name it by modelRef"
    value = "True" if pods and not why else "False"
    last = ready_condition(found.get("status") or {})
    condition = {
        "type": "Ready", "status": value, "reason": "Loaded" if value == "True" else "NotLoaded",
        "message": told or f"all {ready} workers have it",
        "lastTransitionTime": last["lastTransitionTime"] if last.get("status") == value else now(),
    }  # fmt: skip
    return {
        "endpoints": endpoints, "readyEndpoints": ready, "totalEndpoints": len(endpoints), "conditions": [condition],
    }  # fmt: skip
