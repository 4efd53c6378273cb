"""Servers that are not ours, such as `vllm serve`: each stands in this process's own discovery as a worker.

Their requests travel through the gateway. What an engine publishes about its KV cache is followed as a worker's is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from msgspec import Struct

from dynamo.api.epp.endpoints import Endpoints
from dynamo.kv.publish.publisher import KvEventPublisher
from dynamo.model.registration import put_card
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import Unavailable
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import Context, DistributedRuntime, Endpoint, EndpointId, RuntimeConfig
from dynamo.runtime.network import Local
from dynamo.runtime.stream import Outlet

log = logging.getLogger(__name__)

SERVER = EndpointId("gateway", "servers", "generate")


class KvEventPorts(Struct, frozen=True):
    """Where the engine of a server publishes its KV events over ZMQ; without a port the router estimates."""

    events: int | None = None
    replay: int | None = None


class StockServer:
    def __init__(self, address: str, card: ModelCard, ports: KvEventPorts, config: RuntimeConfig, local: Local) -> None:
        self.address = address
        self._card = card
        self._ports = ports
        self._runtime = DistributedRuntime(config=config, local=local)
        self._publisher: KvEventPublisher | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def instance_id(self) -> int:
        return self._runtime.instance_id

    async def start(self) -> None:
        endpoint = Endpoint(self._runtime, SERVER)
        await put_card(endpoint, self._card)
        if self._ports.events:
            host = self.address.rpartition(":")[0]
            replay = f"tcp://{host}:{self._ports.replay}" if self._ports.replay else None
            self._publisher = KvEventPublisher(
                endpoint,
                kv_block_size=self._card.kv_cache_block_size,
                zmq_endpoint=f"tcp://{host}:{self._ports.events}",
                zmq_replay_endpoint=replay,
            )
        self._serving = asyncio.create_task(endpoint.serve(_not_here))
        log.info(
            "the server %s is worker %s, instance %x", self.address, worker_name(self.instance_id), self.instance_id
        )

    async def close(self) -> None:
        if self._publisher:
            self._publisher.shutdown()
        self._runtime.shutdown(drain=False)
        if self._serving:
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._runtime.close()


class StockServers:
    """`follow` makes them those at the given addresses."""

    def __init__(
        self, card: ModelCard, ports: KvEventPorts, config: RuntimeConfig, local: Local, endpoints: Endpoints
    ) -> None:
        self._card, self._ports, self._config, self._local = card, ports, config, local
        self._endpoints = endpoints
        self._servers: dict[str, StockServer] = {}
        self._wanted: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._settling = asyncio.Lock()

    def follow(self, addresses: Iterable[str]) -> None:
        """Requests go to these from now on; what is known of their caches follows."""
        self._wanted = dict.fromkeys(addresses)
        self._endpoints.limit_to(self._wanted)
        self._changed.set()

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        for address in list(self._servers):
            await self._remove(address)

    async def settle(self) -> None:
        """Join and leave until the servers are those that are wanted."""
        async with self._settling:
            while self._servers.keys() != self._wanted.keys():
                for address in [each for each in self._wanted if each not in self._servers]:
                    server = self._servers[address] = StockServer(
                        address, self._card, self._ports, self._config, self._local
                    )
                    self._endpoints.join(server.instance_id, address)
                    await server.start()
                # Afterwards: a model whose last server left is loaded anew with the next.
                for address in [each for each in self._servers if each not in self._wanted]:
                    await self._remove(address)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.settle()
            log.info("the pool has %d servers", len(self._servers))

    async def _remove(self, address: str) -> None:
        server = self._servers.pop(address)
        self._endpoints.leave(server.instance_id)
        await server.close()


def _not_here(request: object, context: Context, outlet: Outlet) -> None:
    outlet.fail(Unavailable("requests to this server travel through the gateway"))
