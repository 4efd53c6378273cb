"""Calls of Kubernetes' API: one method per verb, and errors that say what an administrator must change."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, Self, TypeVar

import aiohttp
import msgspec

from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.errors import ApiOutage, ApiRefusal, error_of
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.kubernetes.messages import APPLY, ApiCall, Listing, ObjectPage, ScaleObject
from dynamo.kubernetes.resources import Resource

_LIMIT_SECONDS = 5.0
_LARGEST_OBJECT = 8 << 20
_LARGEST_PAGE = 64 << 20
_PAGE = 500
_PATCH_TYPES = {
    "apply": APPLY,
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}

T = TypeVar("T")


class _AbortedResponse(aiohttp.ClientResponse):
    """Closing it early ends its connection at once, also while the answer's head has not come: an orderly end of TLS
    goes on in the background, where it would outlive `KubernetesApi.close`, and the loop."""

    def close(self) -> None:
        if (connection := self.connection) and connection.transport:
            connection.transport.abort()
        super().close()


PatchKind = Literal["merge", "strategic", "json"]
Propagation = Literal["Foreground", "Background", "Orphan"]


class KubernetesApi:
    """Connections stay open between calls; tokens, certificates and authorities are read again for each call.

    Every method uses the namespace of the access unless another one is named. The first call opens a session, so the
    same event loop must make all calls and `close` it.
    """

    def __init__(self, access: ClusterAccess, namespace: str | None = None) -> None:
        self.access = access
        self.namespace = namespace or access.namespace
        self.calls = 0
        """Requests sent so far."""
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[tuple[bytes, ...], ssl.SSLContext] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session:
            if session.connector:
                # A server that hangs would hold up an orderly end.
                await session.connector.close(abort_ssl=True)
            await session.close()

    async def get(
        self, resource: Resource, name: str, answer: type[T], *, namespace: str | None = None, subresource: str = ""
    ) -> T:
        call = self._named("get", "GET", resource, name, namespace, subresource)
        return decoded(await self._call(call), answer, f"{self.access.server}: its answer for {call}")

    async def list(
        self, resource: Resource, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Listing:
        """All objects that match the selectors, in pages of one moment. A namespace of "" means all of them."""
        items: list[msgspec.Raw] = []
        params = {"limit": str(_PAGE), **selectors(labels, fields)}
        while True:
            call = ApiCall(
                verb="list", method="GET", resource=resource, namespace=self._in(namespace), params=params
            )  # fmt: skip
            page = decoded(await self._call(call), ObjectPage, f"{self.access.server}: its list of {resource}")
            items += page.items or ()
            if not page.metadata.continue_:
                return Listing(items, page.metadata.resource_version)
            params = {**params, "continue": page.metadata.continue_}

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        force: bool = True,
        namespace: str | None = None,
        subresource: str = "",
    ) -> bytes:
        """Server-side apply: the manager owns exactly the fields of `body`. The answer is the object, as JSON."""
        metadata = {**body.get("metadata", {}), "name": name}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        call = self._named("patch", "PATCH", resource, name, namespace, subresource)
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self._call(_with_body(call, whole, _PATCH_TYPES["apply"], params))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        kind: PatchKind = "merge",
        namespace: str | None = None,
        subresource: str = "",
    ) -> bytes:
        """With a `metadata.resourceVersion` in the body: refused where the object was changed since."""
        call = self._named("patch", "PATCH", resource, name, namespace, subresource)
        return await self._call(_with_body(call, body, _PATCH_TYPES[kind], {}))

    async def create(self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None) -> bytes:
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        call = ApiCall(verb="create", method="POST", resource=resource, namespace=self._in(namespace))
        return await self._call(_with_body(call, whole, "application/json", {}))

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str | None = None,
        propagation: Propagation | None = None,
        grace: int | None = None,
        namespace: str | None = None,
    ) -> None:
        """With a `uid`: only that object, not a later one of the same name."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        call = self._named("delete", "DELETE", resource, name, namespace, "")
        await self._call(_with_body(call, options, "application/json", {}))

    async def read_scale(self, resource: Resource, name: str, *, namespace: str | None = None) -> ScaleObject:
        return await self.get(resource, name, ScaleObject, namespace=namespace, subresource="scale")

    async def scale(
        self,
        resource: Resource,
        name: str,
        replicas: int,
        *,
        version: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """With a `version`: refused where the object is no longer the one that was read."""
        metadata = {} if version is None else {"metadata": {"resourceVersion": version}}
        body = {**metadata, "spec": {"replicas": replicas}}
        await self.patch(resource, name, body, namespace=namespace, subresource="scale")

    @asynccontextmanager
    async def stream(self, call: ApiCall, silence: float) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of an answer that goes on. It ends with an ApiOutage after `silence` seconds without a byte."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_LIMIT_SECONDS, sock_read=silence)
        async with self._answered(call, limit) as response:
            try:
                yield response.content
            finally:
                response.close()

    def _named(
        self, verb: str, method: str, resource: Resource, name: str, namespace: str | None, subresource: str
    ) -> ApiCall:
        return ApiCall(
            verb=verb, method=method, resource=resource, name=name, namespace=self._in(namespace),
            subresource=subresource,
        )  # fmt: skip

    def _in(self, namespace: str | None) -> str:
        return self.namespace if namespace is None else namespace

    async def _call(self, call: ApiCall) -> bytes:
        async with self._answered(call, aiohttp.ClientTimeout(total=_LIMIT_SECONDS)) as response:
            return await _body(response, _LARGEST_PAGE if call.verb == "list" else _LARGEST_OBJECT)

    @asynccontextmanager
    async def _answered(self, call: ApiCall, limit: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer; whatever fails, also while its body is read, is raised as a KubernetesError."""
        try:
            response = await self._send(call, limit)
            if response.status == 401 and self.access.plugin:
                response.release()
                self.access.plugin.forget()
                response = await self._send(call, limit)
            async with response:
                if response.status >= 300:
                    raise error_of(response.status, await _body(response, _LARGEST_OBJECT), call, self.access)
                yield response
        except TimeoutError:
            seconds = limit.total or limit.sock_read or 0.0
            raise ApiOutage(f"{self.access.server} does not answer within {seconds:g} s") from None
        except ClusterAccessError as error:
            raise ApiRefusal(str(error)) from error
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            raise ApiOutage(f"{self.access.server}: {_reason(error)}") from error

    async def _send(self, call: ApiCall, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        access = await self.access.current()
        if self._session is None:
            # One connection per watch, and some for the calls between.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), response_class=_AbortedResponse
            )
        headers = {"Accept": "application/json", **access.headers()}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        self.calls += 1
        return await self._session.request(
            call.method,
            f"{access.server}/{call.resource.path(call.namespace, call.name, call.subresource)}",
            params=call.params,
            headers=headers,
            data=call.body,
            ssl=self._context(access),
            server_hostname=access.server_name,
            allow_redirects=False,
            timeout=limit,
        )

    def _context(self, access: ClusterAccess) -> ssl.SSLContext:
        """The same one until a file changes: connections are shared by those with the same context."""
        material = access.tls_material()
        if self._tls is None or self._tls[0] != material:
            self._tls = (material, access.tls())
        return self._tls[1]


def selectors(labels: str, fields: str) -> dict[str, str]:
    found = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in found.items() if value}


def decoded(data: bytes | msgspec.Raw, answer: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiOutage(f"{what} is not Kubernetes': {error}") from error


def _with_body(call: ApiCall, body: Any, content_type: str, params: Mapping[str, str]) -> ApiCall:
    return msgspec.structs.replace(call, body=msgspec.json.encode(body), content_type=content_type, params=params)


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            error = error.certificate_error
        case aiohttp.ClientConnectorError():
            error = error.os_error
    return " ".join(str(error).split()) or type(error).__name__


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > most:
            raise ApiOutage(f"{response.url} answers with more than {most >> 20} MB")
    return bytes(data)
