"""The workers of one endpoint: its instances, and what the card of each says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.runtime import DistributedRuntime, EndpointId, records
from dynamo.runtime.discovery import Delete, Put, Synced
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import CARDS, INSTANCES, split_key

log = logging.getLogger(__name__)


class Workers:
    """Follows discovery from `start` to `close`. `on_card` is told every card that comes or changes."""

    def __init__(
        self, runtime: DistributedRuntime, endpoint: EndpointId, on_card: Callable[[int, ModelCard], None]
    ) -> None:
        self.instances = InstanceSet(str(endpoint), runtime.plane)
        self._discovery = runtime.discovery
        self._path = f"{endpoint.path}/"
        self._on_card = on_card
        self._cards: dict[int, ModelCard] = {}
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all that are there are known."""
        synced = {CARDS: asyncio.Event(), INSTANCES: asyncio.Event()}
        self._watching = [asyncio.create_task(self._watch(prefix, event)) for prefix, event in synced.items()]
        for event in synced.values():
            await event.wait()

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    def runtime_of(self, instance_id: int) -> ModelRuntimeConfig:
        card = self._cards.get(instance_id)
        return card.runtime_config if card else ModelRuntimeConfig()

    async def _watch(self, prefix: str, synced: asyncio.Event) -> None:
        put, delete = (self._card, self._no_card) if prefix == CARDS else (self._instance, self.instances.remove)
        async with contextlib.aclosing(self._discovery.watch(prefix + self._path)) as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    synced.set()
                    continue
                try:
                    match change:
                        case Put(key, value):
                            put(key, value)
                        case Delete(key):
                            delete(split_key(key)[1])
                except (ValueError, RecursionError) as error:
                    log.warning("ignoring the record %s: %s", change.key, error)

    def _instance(self, key: str, value: bytes) -> None:
        self.instances.put(records.decode_at(key, value))

    def _card(self, key: str, value: bytes) -> None:
        instance_id = split_key(key)[1]
        card = msgspec.json.decode(value, type=ModelCard)
        before = self.runtime_of(instance_id)
        self._cards[instance_id] = card
        self._on_card(instance_id, card)
        if card.runtime_config != before:
            self.instances.tell_again(instance_id)

    def _no_card(self, instance_id: int) -> None:
        self._cards.pop(instance_id, None)
