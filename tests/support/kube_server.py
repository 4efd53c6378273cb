"""A stand-in for Kubernetes' API server: reads and merge patches of objects, with their versions, tokens and rights."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from support.certificates import certificate

PREFIX = "/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}"


class KubeServer:
    """Over TLS, with a certificate of its own. Objects are found by plural and name, all in the namespace `serving`."""

    def __init__(self, folder: Path, client_ca: Path | None = None) -> None:
        """With `client_ca`, clients show a certificate of this authority instead of a token."""
        self._client_ca = client_ca
        self.ca, self._key = certificate(folder, "apiserver")
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.tokens = {"first"}
        self.forbidden: set[tuple[str, str]] = set()
        """Verbs and resources."""
        self.answer: tuple[int, bytes] | None = None
        """Given instead of any other."""
        self.before_change: Callable[[], None] = lambda: None
        self.calls: list[tuple[str, str]] = []
        self._version = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        for path in (PREFIX, PREFIX + "/{subresource}"):
            app.router.add_get(path, self._respond)
            app.router.add_patch(path, self._respond)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.ca, self._key)
        if self._client_ca:
            tls.load_verify_locations(self._client_ca)
            tls.verify_mode = ssl.CERT_REQUIRED
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    def put(self, plural: str, name: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        """As any other client of the API does it: the version is a new one."""
        self._version += 1
        self.objects[plural, name] = {
            "metadata": {"name": name, "resourceVersion": str(self._version)},
            "spec": spec,
            "status": status or {},
        }

    def replicas(self, plural: str, name: str) -> Any:
        return self.objects[plural, name]["spec"]["replicas"]

    async def _respond(self, request: web.Request) -> web.Response:
        if self.answer:
            status, body = self.answer
            return web.Response(status=status, body=body)
        found = request.match_info
        plural, name, subresource = found["plural"], found["name"], found.get("subresource", "")
        verb = request.method.lower()
        resource = "/".join(filter(None, [plural, subresource]))
        self.calls.append((verb, resource))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens and not self._client_ca:
            return _refusal(401, "Unauthorized", "Unauthorized")
        if (verb, resource) in self.forbidden:
            return _refusal(403, "Forbidden", f'{plural}.{found["group"]} "{name}" is forbidden')
        if found["namespace"] != "serving" or (plural, name) not in self.objects:
            return _refusal(404, "NotFound", f'{plural}.{found["group"]} "{name}" not found')
        if verb == "get":
            return web.json_response(self.objects[plural, name])
        self.before_change()
        thing = self.objects[plural, name]
        assert request.content_type == "application/merge-patch+json"
        patch = await request.json()
        if patch["metadata"]["resourceVersion"] != thing["metadata"]["resourceVersion"]:
            return _refusal(409, "Conflict", "the object has been modified")
        self.put(plural, name, _merged(thing["spec"], patch["spec"]), thing["status"])
        return web.json_response(self.objects[plural, name])


def _merged(old: Any, patch: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(patch, dict)):
        return patch
    return old | {key: _merged(old.get(key), value) for key, value in patch.items()}


def _refusal(status: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status}
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json")
