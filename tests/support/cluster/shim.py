"""Serves today's versions of some APIs in front of Kubernetes 1.20's betas, and registers custom resources there.

`python -m support.cluster.shim SERVER TOKEN CA CERTIFICATE KEY PORT CRD_SERVER_PORT`; an aggregated API of the old
server, which has authenticated callers already. The rights are checked by the old server, whom it impersonates to.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import yaml
from aiohttp import web

BETAS = {
    "autoscaling/v2": "autoscaling/v2beta2",
    "policy/v1": "policy/v1beta1",
    "discovery.k8s.io/v1": "discovery.k8s.io/v1beta1",
}
HOST, ZONE, REGION = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

Object = dict[str, Any]


def renamed(value: Any, old: str, new: str) -> Any:
    """With another API version wherever one is named."""
    if isinstance(value, list):
        return [renamed(each, old, new) for each in value]
    if isinstance(value, dict):
        return {
            key: new if key in ("apiVersion", "groupVersion") and each == old else renamed(each, old, new)
            for key, each in value.items()
        }
    return value


def converted(thing: Any, old: str, new: str) -> Any:
    thing = renamed(thing, old, new)
    if "discovery" in old and isinstance(thing, dict):
        for each in thing.get("items") or [thing.get("object", thing)]:
            for endpoint in each.get("endpoints") or []:
                (_endpoint_up if new in BETAS else _endpoint_down)(endpoint)
    return thing


def _endpoint_up(endpoint: Object) -> None:
    topology = endpoint.pop("topology", None) or {}
    topology.pop(REGION, None)
    if node := topology.pop(HOST, None):
        endpoint.setdefault("nodeName", node)
    if zone := topology.pop(ZONE, None):
        endpoint["zone"] = zone
    if topology:
        endpoint["deprecatedTopology"] = topology


def _endpoint_down(endpoint: Object) -> None:
    topology = endpoint.pop("deprecatedTopology", {})
    if "zone" in endpoint:
        topology[ZONE] = endpoint.pop("zone")
    if "nodeName" in endpoint:
        topology[HOST] = endpoint["nodeName"]
    if topology:
        endpoint["topology"] = topology


class Shim:
    def __init__(self, server: str, token: str, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._token = token
        self._session = session

    async def forward(self, request: web.Request) -> web.StreamResponse:
        asked = f"{request.match_info['group']}/{request.match_info['version']}"
        if (beta := BETAS.get(asked)) is None:
            raise web.HTTPNotFound
        url = self._server + request.rel_url.raw_path.replace(f"/apis/{asked}", f"/apis/{beta}", 1)
        if request.rel_url.raw_query_string:
            url += "?" + request.rel_url.raw_query_string
        headers = self._headers(request)
        body = await request.read()
        if body:
            kind = request.headers.get("Content-Type", "application/json")
            thing = yaml.safe_load(body)
            if isinstance(thing, dict) and "json-patch" not in kind:
                thing = converted(thing, asked, beta)
            body = json.dumps(thing).encode()
            headers.append(("Content-Type", kind.replace("apply-patch+cbor", "apply-patch+yaml")))
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            if request.query.get("watch") in ("1", "true"):
                return await self._stream(request, answer, asked, beta)
            whole = converted(json.loads(await answer.read()), beta, asked)
            return web.json_response(whole, status=answer.status)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, asked: str, beta: str
    ) -> web.StreamResponse:
        out = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await out.prepare(request)
        async for line in answer.content:
            if line.strip():
                await out.write(json.dumps(converted(json.loads(line), beta, asked)).encode() + b"\n")
        return out

    def _headers(self, request: web.Request) -> list[tuple[str, str]]:
        kinds = request.headers.get("Accept", "*/*").split(",")
        readable = [kind for kind in kinds if "protobuf" not in kind and "cbor" not in kind]
        return [
            ("Authorization", f"Bearer {self._token}"),
            ("Impersonate-User", request.headers.get("X-Remote-User", "system:anonymous")),
            *(("Impersonate-Group", group) for group in request.headers.getall("X-Remote-Group", [])),
            ("Accept", ",".join(readable) or "application/json"),
            ("User-Agent", request.headers.get("User-Agent", "")),
        ]

    async def register_custom_resources(self, crd_port: int) -> None:
        """Make an APIService of each served version, as an API server does for definitions of its own."""
        base, headers = f"https://localhost:{crd_port}{CRDS}", {"Authorization": f"Bearer {self._token}"}
        while True:
            try:
                async with self._session.get(base, headers=headers, ssl=False) as answer:
                    listing = await answer.json()
                for definition in listing["items"]:
                    await self._register(definition, crd_port)
                version = listing["metadata"]["resourceVersion"]
                params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "300"}
                async with self._session.get(base, params=params, headers=headers, ssl=False) as answer:
                    async for line in answer.content:
                        event = json.loads(line)
                        if event["type"] in ("ADDED", "MODIFIED"):
                            await self._register(event["object"], crd_port)
            except (aiohttp.ClientError, OSError, KeyError, ValueError):
                await asyncio.sleep(0.3)

    async def _register(self, definition: Object, crd_port: int) -> None:
        conditions = definition.get("status", {}).get("conditions") or []
        if not any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        group = definition["spec"]["group"]
        for version in definition["spec"]["versions"]:
            if version["served"]:
                spec = {
                    "group": group, "version": version["name"], "groupPriorityMinimum": 1000,
                    "versionPriority": 20 if version["storage"] else 10, "insecureSkipTLSVerify": True,
                    "service": {"namespace": "kube-system", "name": "crds", "port": crd_port},
                }  # fmt: skip
                await self._create_api_service(f"{version['name']}.{group}", spec)

    async def _create_api_service(self, name: str, spec: Object) -> None:
        """Created, as server-side apply of one makes the old server panic; where it is there, that is a conflict."""
        body = {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec,
        }  # fmt: skip
        url = f"{self._server}/apis/apiregistration.k8s.io/v1/apiservices"
        async with self._session.post(url, json=body, headers={"Authorization": f"Bearer {self._token}"}) as answer:
            await answer.read()


async def paths(request: web.Request) -> web.Response:
    return web.json_response({"paths": ["/apis"]})


def main(server: str, token: str, ca: str, certificate: str, key: str, port: str, crd_port: str) -> None:
    async def connected(app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0)
        limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=limit, read_bufsize=1 << 22) as session:
            shim = Shim(server, token, session)
            app[SHIM] = shim
            registering = asyncio.create_task(shim.register_custom_resources(int(crd_port)))
            yield
            registering.cancel()

    async def forward(request: web.Request) -> web.StreamResponse:
        return await request.app[SHIM].forward(request)

    app = web.Application(client_max_size=1 << 24)
    app.cleanup_ctx.append(connected)
    app.router.add_route("*", "/apis/{group}/{version}", forward)
    app.router.add_route("*", "/apis/{group}/{version}/{tail:.*}", forward)
    app.router.add_get("/{path:.*}", paths)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    web.run_app(app, host="127.0.0.1", port=int(port), ssl_context=tls, print=None)


SHIM = web.AppKey("shim", Shim)

if __name__ == "__main__":
    main(*sys.argv[1:8])
