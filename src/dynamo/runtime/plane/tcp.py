"""The request plane over TCP: the worker listens, each client process keeps one connection to it and multiplexes."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from dynamo.process.addresses import LOOPBACK, own_address
from dynamo.protocols.errors import CannotConnect, Disconnected
from dynamo.protocols.instance import Instance, Transport
from dynamo.runtime.plane.base import PlaneError, instance_path
from dynamo.runtime.plane.client_link import ClientLink
from dynamo.runtime.plane.handshake import PendingHandshakes
from dynamo.runtime.plane.pool import LinkChannel, LinkPool
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.server_link import ServerLink
from dynamo.runtime.plane.tls import PlaneTls

log = logging.getLogger(__name__)


class TcpConfig(Struct, frozen=True, kw_only=True):
    host: str = LOOPBACK
    port: int = 0
    token: str | None = None
    tls: PlaneTls = PlaneTls()
    connect_timeout: float = 5.0
    beat: float = 1.0
    """Seconds between two pings while streams are open."""
    patience: int = 20
    """Unanswered pings after which a connection is given up: a worker's code may block its loop for a while."""
    peers: tuple[str, ...] = ()
    """Hosts that everyone reaches: the way to them decides which address a wildcard `host` is known by."""


class TcpPlane:
    transport: Transport = "tcp"

    def __init__(self, config: TcpConfig) -> None:
        self._config = config
        self._routes: dict[str, Route] = {}
        self._server: asyncio.Server | None = None
        self._listening = asyncio.Lock()
        self._inbound: set[ServerLink] = set()
        self._open: set[_Protocol] = set()
        self._handshakes = PendingHandshakes()
        self._pool = LinkPool(self._connect)

    async def start(self) -> None:
        """Nothing to do: the listener opens with the first route, connections with the first request."""

    async def serve(self, route: Route) -> str:
        async with self._listening:
            if self._server is None:
                await self._listen()
        self._routes[route.path] = route
        route.on_close.append(lambda: self._send_draining(route.path))
        return self.address

    def _send_draining(self, path: str) -> None:
        for link in self._inbound:
            link.send_draining(path)

    @property
    def address(self) -> str:
        assert self._server
        listening = self._server.sockets[0]
        host, port = listening.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = own_address(self._config.peers, listening.family)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _listen(self) -> None:
        config = self._config
        tls = config.tls.server_context(self._handshake_failed)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: ServerProtocol(self._open, self._routes, self._inbound, self._handshakes, config),
                config.host,
                config.port,
                backlog=1024,
                ssl=tls,
                ssl_handshake_timeout=config.tls.handshake_timeout if tls else None,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"port {config.port} is already in use; set DYN_TCP_RPC_PORT to a free one, or leave it out"
            else:
                why = f"{error.strerror or error}; set DYN_TCP_RPC_HOST to an address of this machine"
            raise PlaneError(f"cannot listen on {config.host}:{config.port}: {why}") from error

    def _handshake_failed(self, error: ssl.SSLError) -> None:
        self._handshakes.rejected("a client", f"TLS failed: {tls_reason(error)}")

    def channel(self, instance: Instance) -> LinkChannel:
        return LinkChannel(self._pool, instance.address, instance_path(instance))

    def link_rows(self) -> Iterator[dict[str, Any]]:
        for protocol in tuple(self._open):
            side = "to a worker" if isinstance(protocol, ClientProtocol) else "from a client"
            yield protocol.link.row(side) | {"unsent_bytes": protocol.transport.get_write_buffer_size()}

    async def _connect(self, address: str) -> ClientLink:
        host, _, port = address.rpartition(":")
        config = self._config
        protocol: ClientProtocol | None = None
        secure = config.tls.on
        try:
            async with asyncio.timeout(config.connect_timeout):
                _, protocol = await asyncio.get_running_loop().create_connection(
                    lambda: ClientProtocol(self._open, address, config),
                    host.strip("[]"),
                    int(port),
                    ssl=config.tls.client_context() if secure else None,
                    server_hostname=(config.tls.server_name or host.strip("[]")) if secure else None,
                    ssl_handshake_timeout=config.tls.handshake_timeout if secure else None,
                )
                await protocol.link.greeted
        except CannotConnect:
            raise
        except PlaneError as error:
            raise CannotConnect(f"cannot connect to {address}: {error}") from error
        except ssl.SSLError as error:
            raise CannotConnect(f"cannot connect to {address}: TLS failed: {tls_reason(error)}") from error
        except (OSError, ValueError) as error:
            if protocol:
                protocol.link.lose(Disconnected("no answer to hello"))
            raise CannotConnect(f"cannot connect to {address}: {error or 'timed out'}") from error
        return protocol.link

    async def close(self) -> None:
        await self._pool.close()
        if self._server:
            self._server.close()
        for link in tuple(self._inbound):
            link.lose(Disconnected("the worker was shut down"))
        await self._closed(within=1.0)
        for protocol in tuple(self._open):
            protocol.transport.abort()
        await self._closed(within=1.0)
        if self._server:
            await self._server.wait_closed()

    async def _closed(self, *, within: float) -> None:
        """Wait for connections to send their last bytes, but not long: a peer may not read."""
        if self._open:
            await asyncio.wait([protocol.closed for protocol in self._open], timeout=within)


class _Protocol(asyncio.Protocol):
    """Glue between asyncio's transport and a link."""

    transport: asyncio.Transport
    link: ServerLink | ClientLink

    def __init__(self, opened: set[_Protocol]) -> None:
        self._open_protocols = opened
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _on_open(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        self.transport = cast(asyncio.Transport, transport)
        self._open_protocols.add(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.transport

    def data_received(self, data: bytes) -> None:
        self.link.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._open_protocols.discard(self)
        self.closed.set_result(None)
        self.link.lose(Disconnected(f"the connection to {self.link.peer} broke: {error or 'closed by the peer'}"))


class ServerProtocol(_Protocol):
    MAX_UNSENT = 256 * 1024 * 1024

    def __init__(
        self,
        opened: set[_Protocol],
        routes: Mapping[str, Route],
        links: set[ServerLink],
        handshakes: PendingHandshakes,
        config: TcpConfig,
    ) -> None:
        super().__init__(opened)
        self._handshakes = handshakes
        self._routes = routes
        self._links = links
        self._config = config

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._on_open(transport)
        host, port = stream.get_extra_info("peername")[:2]
        self.link: ServerLink = ServerLink(
            self._write,
            f"{host}:{port}",
            self._routes,
            token=self._config.token,
            handshakes=self._handshakes,
            beat=self._config.beat,
            patience=self._config.patience,
            close=stream.close,
        )
        self._links.add(self.link)

    def _write(self, data: bytes) -> None:
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > self.MAX_UNSENT:
            self.transport.abort()
            log.warning("closing the connection with %s: it does not read what it asked for", self.link.peer)

    def connection_lost(self, error: Exception | None) -> None:
        self._links.discard(self.link)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        self.link.pause()

    def resume_writing(self) -> None:
        self.link.resume()


class ClientProtocol(_Protocol):
    def __init__(self, opened: set[_Protocol], address: str, config: TcpConfig) -> None:
        super().__init__(opened)
        self._address = address
        self._config = config

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._on_open(transport)
        self.link: ClientLink = ClientLink(
            stream.write,
            self._address,
            token=self._config.token,
            beat=self._config.beat,
            patience=self._config.patience,
            close=stream.close,
        )


def tls_reason(error: ssl.SSLError) -> str:
    """What a person can act on, like `certificate has expired`."""
    return getattr(error, "verify_message", "") or (error.reason or str(error)).lower().replace("_", " ")
