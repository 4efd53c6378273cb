"""The two calls of Kubernetes' API that scaling needs: read an object, and change a part of it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import aiohttp
import msgspec
from msgspec import Meta, Struct

from dynamo.kubernetes.cluster import ClusterAccess, ClusterAccessError

_LIMIT_SECONDS = 5.0
_MOST_BYTES = 8 << 20
_LONGEST_MESSAGE = 300

T = TypeVar("T")
Replicas = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class KubernetesError(Exception):
    """A call of the API failed."""


class ApiOutage(KubernetesError):
    """No usable answer came: whether something was changed is unknown."""


class ApiRefusal(KubernetesError):
    """The API server answered, and the answer is no: nothing was changed."""


class ObjectMetadata(Struct, frozen=True):
    resourceVersion: Annotated[str, Meta(min_length=1)]


class KubernetesStatus(Struct, frozen=True):
    """What the API server answers with an error."""

    message: str = ""
    reason: str = ""


class ObjectPath(Struct, frozen=True, kw_only=True):
    """`subresource` is what a change goes to; the object itself is read."""

    group: str
    version: str
    plural: str
    name: str
    subresource: str = ""

    def __str__(self) -> str:
        return f"{self.plural}.{self.group} '{self.name}'"


class KubernetesApi:
    """One connection per call: tokens and authorities are replaced while a planner runs, and servers restart."""

    def __init__(self, access: ClusterAccess, namespace: str | None = None) -> None:
        self._access = access
        self.namespace = namespace or access.namespace

    async def read(self, path: ObjectPath, answer: type[T]) -> T:
        data = await self._call("get", path, "")
        return decoded(data, answer, f"{self._access.server}: its answer for {path}")

    async def change(self, path: ObjectPath, metadata: ObjectMetadata, spec: Mapping[str, Any]) -> None:
        """A merge patch, refused where the object is no longer the one that was read."""
        body = {"metadata": {"resourceVersion": metadata.resourceVersion}, "spec": spec}
        await self._call("patch", path, path.subresource, msgspec.json.encode(body))

    async def _call(self, verb: str, path: ObjectPath, subresource: str, body: bytes | None = None) -> bytes:
        url = "/".join((
            self._access.server, "apis", path.group, path.version, "namespaces", self.namespace, path.plural, path.name,
            *filter(None, [subresource]),
        ))  # fmt: skip
        try:
            headers = {"Accept": "application/json", **self._access.headers()}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            connector = aiohttp.TCPConnector(ssl=self._access.tls())
            limit = aiohttp.ClientTimeout(total=_LIMIT_SECONDS)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limit) as session,
                session.request(
                    verb, url, headers=headers, data=body, allow_redirects=False,
                    server_hostname=self._access.server_name,
                ) as response,
            ):  # fmt: skip
                data = await _body(response)
        except TimeoutError:
            raise ApiOutage(f"{self._access.server} does not answer within {_LIMIT_SECONDS:g} s") from None
        except ClusterAccessError as error:
            raise ApiRefusal(str(error)) from error
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            raise ApiOutage(f"{self._access.server}: {_reason(error)}") from error
        if response.status != 200:
            raise self._error(response.status, data, verb, path, subresource)
        return data

    def _error(self, status: int, data: bytes, verb: str, path: ObjectPath, subresource: str) -> KubernetesError:
        try:
            said = msgspec.json.decode(data, type=KubernetesStatus)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            said = KubernetesStatus(message=data.decode(errors="replace"))
        message = " ".join(said.message.split())[:_LONGEST_MESSAGE]
        server = self._access.server
        match status:
            case 401:
                return ApiRefusal(f"{server} does not accept the credentials of {self._access.origin}: {message}")
            case 403:
                resource = "/".join(filter(None, [path.plural, subresource]))
                return ApiRefusal(
                    f"{server} forbids it: RBAC must allow the verb '{verb}' on '{resource}' of the API group"
                    f" '{path.group}' in the namespace '{self.namespace}': {message}"
                )
            case 404 if said.reason == "NotFound":
                return ApiRefusal(f"{server}: there is no {path} in the namespace '{self.namespace}'")
            case 404:
                return ApiRefusal(f"{server} knows no {path.plural} of {path.group}/{path.version}")
            case 409:
                return ApiRefusal(f"{path} was changed since it was read, so the decision is dropped")
        refused = 400 <= status < 500
        return (ApiRefusal if refused else ApiOutage)(f"{server} answers {status} for {path}: {message}")


def decoded(data: bytes, answer: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiOutage(f"{what} is not Kubernetes': {error}") from error


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            error = error.certificate_error
        case aiohttp.ClientConnectorError():
            error = error.os_error
    return " ".join(str(error).split()) or type(error).__name__


async def _body(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _MOST_BYTES:
            raise ApiOutage(f"{response.url} answers with more than {_MOST_BYTES >> 20} MB")
    return bytes(data)
