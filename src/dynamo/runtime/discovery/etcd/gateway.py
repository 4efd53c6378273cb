"""etcd v3 over its HTTP/JSON gateway: calls, streams, login, and failover to the next endpoint."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from dynamo.process.addresses import without_credentials
from dynamo.runtime.discovery.base import DiscoveryError
from dynamo.runtime.discovery.etcd.config import EtcdConfig
from dynamo.runtime.discovery.etcd.messages import AuthAnswer, EtcdErrorReply

log = logging.getLogger("dynamo.runtime.discovery.etcd")

CALL_LIMIT = 3.0  # seconds for one endpoint to answer
CONNECT_LIMIT = 2.0

_RETRYABLE = {1, 2, 4, 10, 13, 14, 15}  # gRPC codes: unknown, deadline, internal, unavailable…
_LOGIN_AGAIN = ("invalid auth token", "user name is empty", "revision of auth store is old")

Body = Mapping[str, Any]
T = TypeVar("T")


class Outage(Exception):
    """No endpoint answers now; the same call may work later."""


class TlsFailure(Outage):
    """The endpoint answers, but the TLS handshake fails."""


class NoAnswer(Outage):
    """The endpoint can be reached, but does not answer in time."""


class Refused(Exception):
    """etcd answered, and the answer is no."""

    @property
    def lease_is_lost(self) -> bool:
        return "requested lease not found" in str(self)

    @property
    def wants_login(self) -> bool:
        return any(text in str(self) for text in _LOGIN_AGAIN)


class Gateway:
    """A session with a cluster. `down` says whether the last call found no endpoint that answers."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._current = 0
        self._token: str | None = None
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[aiohttp.ClientResponse] = set()
        self._has_answered = False
        # An outage that outlasts a lease must be noticed before the lease ends: beats come every third of it.
        self._limit = min(CALL_LIMIT, max(1.0, config.lease_ttl / 2))
        self._back_at = -math.inf
        self.down = False

    @property
    def where(self) -> str:
        return ", ".join(map(without_credentials, self._config.endpoints))

    def recently_down(self, within: float) -> bool:
        """Whether there is an outage, or was one in the last `within` seconds."""
        return self.down or asyncio.get_running_loop().time() - self._back_at < within

    def open(self) -> None:
        connector = aiohttp.TCPConnector(ssl=_tls(self._config), limit=0)
        self._session = aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        session, self._session = self._session, None
        for response in self._streams:
            # Closing the session does not wake the readers of its streams.
            response.content.set_exception(aiohttp.ClientConnectionError("closed"))
        if session:
            await session.close()

    async def call(self, path: str, body: Body, answer: type[T]) -> T:
        """Send one request; the answer comes from the first endpoint that gives one."""
        failure: Outage | None = None
        for _ in self._config.endpoints:
            endpoint = self._endpoint()
            try:
                data = await self._logged_in(endpoint, path, body)
                decoded = _decoded(data, answer)
            except Outage as why:
                failure = why
                self._fail_over(endpoint)
            except Refused:
                self._answered()
                raise
            else:
                self._answered()
                return decoded
        assert failure is not None
        self._no_answer(failure)
        raise failure

    @asynccontextmanager
    async def stream(self, path: str, body: Body) -> AsyncIterator[Lines]:
        """Send one request and read its streamed lines; leaving the block closes the connection."""
        endpoint = self._endpoint()
        try:
            async with asyncio.timeout(self._limit):
                response = await self._post(endpoint, path, body)
        except (aiohttp.ClientError, OSError) as why:
            self._fail_over(endpoint)
            raise _outage(why) from why
        try:
            if response.status != 200:
                async with asyncio.timeout(self._limit):
                    raise _error(response.status, await response.read())
            self._streams.add(response)
            yield Lines(response)
        except (aiohttp.ClientError, OSError) as why:
            self._fail_over(endpoint)
            raise _outage(why) from why
        finally:
            self._streams.discard(response)
            response.close()

    async def _logged_in(self, endpoint: str, path: str, body: Body) -> bytes:
        if self._config.username is None:
            return await self._request(endpoint, path, body)
        if self._token is None:
            await self._login(endpoint)
        try:
            return await self._request(endpoint, path, body)
        except Refused as why:
            if not why.wants_login:
                raise
        await self._login(endpoint)
        return await self._request(endpoint, path, body)

    async def _login(self, endpoint: str) -> None:
        self._token = None
        who = {"name": self._config.username, "password": self._config.password}
        try:
            self._token = _decoded(await self._request(endpoint, "/v3/auth/authenticate", who), AuthAnswer).token
        except Refused as why:
            if "authentication is not enabled" not in str(why):
                raise

    async def _request(self, endpoint: str, path: str, body: Body) -> bytes:
        try:
            async with asyncio.timeout(self._limit):
                try:
                    response = await self._post(endpoint, path, body)
                except aiohttp.ServerDisconnectedError:
                    # A connection kept from before etcd restarted says nothing about etcd now.
                    response = await self._post(endpoint, path, body)
                async with response:
                    data = await response.read()
        except (aiohttp.ClientError, OSError) as why:
            raise _outage(why) from why
        if response.status != 200:
            raise _error(response.status, data)
        return data

    async def _post(self, endpoint: str, path: str, body: Body) -> aiohttp.ClientResponse:
        if not self._session:
            raise DiscoveryError("this discovery is not started, or closed")
        return await self._session.post(
            endpoint + path,
            data=io.BytesIO(msgspec.json.encode(body)),  # aiohttp warns of plain bytes when they are many
            headers={"Authorization": self._token} if self._token else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT),
        )

    def _endpoint(self) -> str:
        return self._config.endpoints[self._current]

    def _fail_over(self, failed: str) -> None:
        # Only the first of several calls that fail at once on one endpoint switches.
        if self._endpoint() == failed:
            self._current = (self._current + 1) % len(self._config.endpoints)

    def _answered(self) -> None:
        self._has_answered = True
        if self.down:
            self.down = False
            self._back_at = asyncio.get_running_loop().time()
            log.info("etcd at %s answers again", self.where)

    def _no_answer(self, why: Outage) -> None:
        if self._has_answered and not self.down:
            self.down = True
            log.warning("etcd at %s does not answer: %s; the last known view stays in use", self.where, why)


class Lines:
    """The lines of a streaming answer. Cancelling `read` loses no data."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._rest = b""

    async def read(self) -> list[bytes]:
        """The next lines, at least one; raises `Outage` when the stream ends."""
        while True:
            try:
                chunk = await self._response.content.readany()
            except RuntimeError as why:  # aiohttp's, where the connection was closed before the read
                raise Outage("the connection was closed") from why
            if not chunk:
                raise Outage("the connection was closed")
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if lines:
                return lines


def _decoded(data: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=answer, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as why:
        raise Outage(f"the answer is not etcd's: {why}") from why


def _error(status: int, data: bytes) -> Outage | Refused:
    try:
        answer = msgspec.json.decode(data, type=EtcdErrorReply)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        text = f"HTTP {status}: {data[:200].decode(errors='replace').strip()}"
        return Outage(text) if status >= 500 else Refused(f"{text} (is this etcd, with its HTTP gateway enabled?)")
    return Outage(answer.message) if answer.code in _RETRYABLE else Refused(answer.message)


def _outage(why: Exception) -> Outage:
    match why:
        case aiohttp.ClientConnectorCertificateError():
            return TlsFailure(str(why.certificate_error))
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return TlsFailure(str(why))
        case aiohttp.ClientConnectorError(os_error=ConnectionResetError()):
            return TlsFailure("the connection was reset during the handshake")
        case aiohttp.ClientConnectorError():
            number = why.os_error.errno
            return Outage(os.strerror(number) if number and number > 0 else str(why.os_error))
        case TimeoutError():
            return NoAnswer("no answer in time")
    return Outage(str(why) or type(why).__name__)


def _tls(config: EtcdConfig) -> ssl.SSLContext | bool:
    if not (config.ca or config.client_cert):
        return True
    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.client_cert:
            context.load_cert_chain(config.client_cert, config.client_key)
    except (OSError, ValueError) as why:
        files = ", ".join(path for path in (config.ca, config.client_cert, config.client_key) if path)
        raise DiscoveryError(
            f"cannot use the TLS files {files}: {why};"
            " check ETCD_AUTH_CA, ETCD_AUTH_CLIENT_CERT and ETCD_AUTH_CLIENT_KEY"
        ) from why
    return context
