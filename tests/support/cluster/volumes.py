"""The files of a pod's volumes, and the environment of its containers: what a kubelet takes from other objects."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiOutage, ObjectNotFound
from dynamo.kubernetes.resources import Resource
from support.cluster.places import API_SERVICE

SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")

Object = dict[str, Any]
T = TypeVar("T")


class PodFields:
    """The downward API of one pod."""

    def __init__(self, pod: Object, node: str, ip: str, host_ip: str) -> None:
        self.pod, self.node, self.ip, self.host_ip = pod, node, ip, host_ip
        self.namespace: str = pod["metadata"]["namespace"]
        self.account: str = pod["spec"].get("serviceAccountName") or "default"

    def __getitem__(self, path: str) -> str:
        meta = self.pod["metadata"]
        if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str(meta.get(found[1], {}).get(found[2], ""))
        if path in ("metadata.labels", "metadata.annotations"):
            pairs = meta.get(path.removeprefix("metadata."), {}).items()
            return "".join(f"{key}={json.dumps(value)}\n" for key, value in pairs)
        return {
            "metadata.name": meta["name"],
            "metadata.namespace": self.namespace,
            "metadata.uid": meta["uid"],
            "spec.nodeName": self.node,
            "spec.serviceAccountName": self.account,
            "status.podIP": self.ip,
            "status.podIPs": self.ip,
            "status.hostIP": self.host_ip,
        }[path]


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Its result, once the API server answers: a pod outlives an outage of it."""
    while True:
        try:
            return await call()
        except ApiOutage as error:
            print(f"trying again: {error}", flush=True)
            await asyncio.sleep(1)


class PodSources:
    """ConfigMaps, Secrets and tokens, as this pod may use them."""

    def __init__(self, api: KubernetesApi, fields: PodFields) -> None:
        self._api = api
        self.fields = fields

    async def data(self, resource: Resource, name: str, optional: bool) -> dict[str, bytes]:
        try:
            found: Object = await patiently(
                lambda: self._api.get(resource, name, dict, namespace=self.fields.namespace)
            )
        except ObjectNotFound:
            if optional:
                return {}
            raise
        data = found.get("data") or {}
        if resource is SECRETS:
            return {key: base64.b64decode(value) for key, value in data.items()}
        return {key: value.encode() for key, value in data.items()}

    async def token(self, source: Object) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", **_name_and_uid(self.fields.pod)}
        spec = {
            "audiences": [source["audience"]] if "audience" in source else [],
            "expirationSeconds": source.get("expirationSeconds", 3600),
            "boundObjectRef": bound,
        }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        tokens = Resource("", "v1", f"serviceaccounts/{self.fields.account}/token", "TokenRequest")
        made = await patiently(lambda: self._api.create(tokens, request, namespace=self.fields.namespace))
        answer = json.loads(made)
        return str(answer["status"]["token"])


async def write_volumes(sources: PodSources, folder: Path) -> dict[str, Path]:
    """Each volume of the pod with the folder that stands for it."""
    places: dict[str, Path] = {}
    for volume in sources.fields.pod["spec"].get("volumes") or []:
        place = folder / volume["name"]
        place.mkdir(parents=True)
        place.chmod(0o777)
        if "hostPath" in volume:
            place = Path(volume["hostPath"]["path"])
        places[volume["name"]] = place
        for part in volume["projected"]["sources"] if "projected" in volume else [volume]:
            for name, content in (await _files(sources, part)).items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
    return places


async def _files(sources: PodSources, part: Object) -> dict[str, bytes]:
    for key, resource in (("configMap", CONFIG_MAPS), ("secret", SECRETS)):
        if given := part.get(key):
            name = given.get("name") or given.get("secretName")
            data = await sources.data(resource, name, bool(given.get("optional")))
            items = given.get("items") or [{"key": each, "path": each} for each in data]
            return {item["path"]: data[item["key"]] for item in items}
    if given := part.get("downwardAPI"):
        items = given.get("items") or []
        return {item["path"]: sources.fields[item["fieldRef"]["fieldPath"]].encode() for item in items}
    if given := part.get("serviceAccountToken"):
        return {given["path"]: (await sources.token(given)).encode()}
    return {}


async def environment(sources: PodSources, container: Object, path: str) -> dict[str, str]:
    name = sources.fields["metadata.name"]
    found = {
        "PATH": path, "HOME": "/tmp", "HOSTNAME": name,
        "KUBERNETES_SERVICE_HOST": API_SERVICE, "KUBERNETES_SERVICE_PORT": "443",
    }  # fmt: skip
    for each in container.get("envFrom") or []:
        for key, resource in (("configMapRef", CONFIG_MAPS), ("secretRef", SECRETS)):
            if given := each.get(key):
                data = await sources.data(resource, given["name"], bool(given.get("optional")))
                found |= {each.get("prefix", "") + name: value.decode() for name, value in data.items()}
    for each in container.get("env") or []:
        value = await _value(sources, container, each, found)
        if value is not None:
            found[each["name"]] = value
    return found


async def _value(sources: PodSources, container: Object, variable: Object, known: dict[str, str]) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return expanded(variable.get("value", ""), known)
    if field := source.get("fieldRef"):
        return sources.fields[field["fieldPath"]]
    if field := source.get("resourceFieldRef"):
        kind, name = field["resource"].split(".", 1)
        return str(container.get("resources", {}).get(kind, {}).get(name, ""))
    for key, resource in (("configMapKeyRef", CONFIG_MAPS), ("secretKeyRef", SECRETS)):
        if given := source.get(key):
            optional = bool(given.get("optional"))
            data = await sources.data(resource, given["name"], optional)
            if given["key"] in data or not optional:
                return data[given["key"]].decode()
    return None


def expanded(text: str, environment: dict[str, str]) -> str:
    """With `$(NAME)` replaced where it is known."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


def _name_and_uid(pod: Object) -> dict[str, str]:
    return {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
