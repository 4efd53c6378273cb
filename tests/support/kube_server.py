"""A stand-in for Kubernetes' API server: objects with versions, watches, patches, tokens and rights, in memory."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from aiohttp import web

from support.certificates import certificate

COLLECTIONS = (
    "/apis/{group}/{version}/namespaces/{namespace}/{plural}",
    "/api/{version}/namespaces/{namespace}/{plural}",
)

Object = dict[str, Any]


class Event(NamedTuple):
    version: int
    kind: str
    plural: str
    object: Object


class KubeServer:
    """Over TLS, with a certificate of its own. Objects are found by plural and name, all in the namespace `serving`."""

    def __init__(self, folder: Path, client_ca: Path | None = None) -> None:
        """With `client_ca`, clients show a certificate of this authority instead of a token."""
        self._client_ca = client_ca
        self.ca, self._key = certificate(folder, "apiserver")
        self.objects: dict[tuple[str, str], Object] = {}
        self.tokens = {"first"}
        self.forbidden: set[tuple[str, str]] = set()
        """Verbs and resources."""
        self.unknown: set[str] = set()
        """Resources that have no definition."""
        self.answer: tuple[int, bytes] | None = None
        """Given instead of any other."""
        self.before_change: Callable[[], None] = lambda: None
        self.calls: list[tuple[str, str]] = []
        self.page = 1000
        """Objects that one list answers at most."""
        self._version = 0
        self._history: list[Event] = []
        self._oldest = 0
        """The first version that a watch may start from."""
        self._changed = asyncio.Event()
        self._watches: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def begin(self) -> None:
        """Also again after `stop`, at the same address."""
        app = web.Application()
        for collection in COLLECTIONS:
            app.router.add_get(collection, self._collection)
            for path in (collection + "/{name}", collection + "/{name}/{subresource}"):
                for method in ("GET", "PATCH", "DELETE"):
                    app.router.add_route(method, path, self._respond)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.ca, self._key)
        if self._client_ca:
            tls.load_verify_locations(self._client_ca)
            tls.verify_mode = ssl.CERT_REQUIRED
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=tls).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"https://127.0.0.1:{self._port}"

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self.end_watches()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    def put(self, plural: str, name: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        """As any other client of the API does it: the version is a new one."""
        self.put_object(plural, {"metadata": {"name": name}, "spec": spec, "status": status or {}})

    def put_object(self, plural: str, thing: Object) -> None:
        name = thing["metadata"]["name"]
        known = self.objects.get((plural, name))
        if known is not None and _without_version(known) == _without_version(thing):
            return
        created = (known or {}).get("metadata", {}).get("creationTimestamp") or f"{time.time_ns()}"
        self._version += 1
        metadata = {**thing["metadata"], "creationTimestamp": created, "resourceVersion": str(self._version)}
        self.objects[plural, name] = stored = {**thing, "metadata": metadata}
        self._tell("MODIFIED" if known else "ADDED", plural, stored)

    def remove(self, plural: str, name: str) -> None:
        gone = self.objects.pop((plural, name))
        self._version += 1
        version = str(self._version)
        self._tell("DELETED", plural, {**gone, "metadata": {**gone["metadata"], "resourceVersion": version}})

    def compact(self) -> None:
        """Forget the history, and end the watches: they must read everything again."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()
        self.end_watches()

    def end_watches(self) -> None:
        for watch in tuple(self._watches):
            watch.cancel()

    @property
    def watches(self) -> int:
        """That are open now."""
        return len(self._watches)

    def replicas(self, plural: str, name: str) -> Any:
        return self.objects[plural, name]["spec"]["replicas"]

    def _tell(self, kind: str, plural: str, thing: Object) -> None:
        self._history.append(Event(self._version, kind, plural, thing))
        self._changed.set()
        self._changed = asyncio.Event()

    def _refused(self, request: web.Request, verb: str) -> web.Response | None:
        if self.answer:
            status, body = self.answer
            return web.Response(status=status, body=body)
        found = request.match_info
        resource = "/".join(filter(None, [found["plural"], found.get("subresource", "")]))
        self.calls.append((verb, resource))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens and not self._client_ca:
            return _refusal(401, "Unauthorized", "Unauthorized")
        if (verb, resource) in self.forbidden:
            named = f' "{found["name"]}"' if "name" in found else ""
            return _refusal(403, "Forbidden", f"{found['plural']}.{found.get('group', '')}{named} is forbidden")
        if found["plural"] in self.unknown:
            return web.Response(status=404, text="404 page not found\n")
        return None

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") == "true"
        if refusal := self._refused(request, "watch" if watching else "list"):
            return refusal
        plural, wanted = request.match_info["plural"], request.query.get("labelSelector", "")
        if watching:
            return await self._watch(request, plural, wanted)
        items = [thing for (of, _), thing in sorted(self.objects.items()) if of == plural and _matches(thing, wanted)]
        start = int(request.query.get("continue", 0))
        rest = str(start + self.page) if start + self.page < len(items) else ""
        metadata = {"resourceVersion": str(self._version), "continue": rest}
        return web.json_response({"metadata": metadata, "items": items[start : start + self.page]})

    async def _watch(self, request: web.Request, plural: str, wanted: str) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        task = asyncio.current_task()
        assert task
        self._watches.add(task)
        try:
            await answer.prepare(request)
            while True:
                changed = self._changed
                if seen < self._oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    await answer.write(_line("ERROR", gone))
                    return answer
                for event in [event for event in self._history if event.version > seen]:
                    if event.plural == plural and _matches(event.object, wanted):
                        await answer.write(_line(event.kind, event.object))
                if seen < self._version:
                    seen = self._version
                    await answer.write(_line("BOOKMARK", {"metadata": {"resourceVersion": str(seen)}}))
                await changed.wait()
        except asyncio.CancelledError:
            if request.transport:
                request.transport.close()
            return answer
        except ConnectionError:
            return answer
        finally:
            self._watches.discard(task)

    async def _respond(self, request: web.Request) -> web.Response:
        verb = request.method.lower()
        if refusal := self._refused(request, verb):
            return refusal
        found = request.match_info
        plural, name = found["plural"], found["name"]
        applies = request.content_type == "application/apply-patch+yaml"
        if found["namespace"] != "serving" or ((plural, name) not in self.objects and not applies):
            return _refusal(404, "NotFound", f'{plural}.{found.get("group", "")} "{name}" not found')
        if verb == "get":
            return web.json_response(self.objects[plural, name])
        if verb == "delete":
            self.remove(plural, name)
            return web.json_response({"kind": "Status", "status": "Success"})
        self.before_change()
        patch = await request.json()
        if applies:
            self.put_object(plural, patch)
            return web.json_response(self.objects[plural, name])
        assert request.content_type == "application/merge-patch+json"
        thing = self.objects[plural, name]
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, thing["metadata"]["resourceVersion"]):
            return _refusal(409, "Conflict", "the object has been modified")
        self.put(plural, name, _merged(thing["spec"], patch["spec"]), thing.get("status", {}))
        return web.json_response(self.objects[plural, name])


def _without_version(thing: Object) -> Object:
    kept = {
        key: value for key, value in thing["metadata"].items() if key not in ("resourceVersion", "creationTimestamp")
    }
    return {**thing, "metadata": kept}


def _matches(thing: Object, selector: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    pairs = [pair.partition("=") for pair in selector.split(",") if pair]
    return all(labels.get(key) == value for key, _, value in pairs)


def _merged(old: Any, patch: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(patch, dict)):
        return patch
    return old | {key: _merged(old.get(key), value) for key, value in patch.items()}


def _line(kind: str, thing: Object) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def _refusal(status: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status}
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json")
