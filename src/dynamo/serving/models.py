"""Which models can be served right now: cards and instances from discovery, joined by name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
from msgspec import structs

from dynamo.model import HubConfig, LoadedModel, ModelError, open_card
from dynamo.pipeline.preprocess import Preprocessor
from dynamo.pipeline.prompt_times import PromptTimes
from dynamo.protocols.card import ModelCard, ModelInput, ModelRuntimeConfig
from dynamo.protocols.errors import ModelNotFound, Unavailable
from dynamo.protocols.instance import Instance
from dynamo.router import Router, RouterConfig, make_router
from dynamo.runtime import DistributedRuntime, records
from dynamo.runtime.discovery import Delete, Put, Synced
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import CARDS, INSTANCES, split_key
from dynamo.runtime.plane.base import Channel
from dynamo.serving.overrides import Override, Overrides

log = logging.getLogger(__name__)


class ServedModel:
    """One model name: the card its workers agree on, their instances, and the way to them."""

    def __init__(
        self, card: ModelCard, router: Router, loaded: LoadedModel | None, times: PromptTimes | None = None
    ) -> None:
        self.name = card.name
        self.card = card
        self.created = int(time.time())
        self.router = router
        self.preprocessor = Preprocessor(card, loaded, times) if loaded else None
        """None for a worker that takes text: it does its own."""


class Group:
    """All cards of one name. The first one that came decides; those that disagree with it wait outside."""

    def __init__(self, name: str, instances: InstanceSet) -> None:
        self.name = name
        self.instances = instances
        self.cards: dict[str, tuple[str, ModelCard]] = {}
        self.checksum: str | None = None
        self.model: ServedModel | None = None
        self.loading: asyncio.Task[None] | None = None
        self.error: ModelError | None = None
        """Why its card cannot be opened here."""
        self._count: Counter[str] = Counter()
        self._runtimes: dict[int, ModelRuntimeConfig] = {}

    def put(self, place: str, card: ModelCard, checksum: str) -> None:
        self.remove(place)
        self.cards[place] = (checksum, card)
        self._count[checksum] += 1
        self._runtimes[_instance_of(place)] = card.runtime_config

    def remove(self, place: str) -> None:
        known = self.cards.pop(place, None)
        if known:
            self._count[known[0]] -= 1
            self._runtimes.pop(_instance_of(place), None)

    def elect(self) -> ModelCard | None:
        """A new card to serve by: the oldest one there is, when nobody has the one chosen before any more."""
        if self.checksum is not None and self._count[self.checksum]:
            return None
        self.checksum = None
        for checksum, card in self.cards.values():
            self.checksum = checksum
            return card
        return None

    def agrees(self, place: str) -> bool:
        return self.cards[place][0] == self.checksum

    def runtime_of(self, instance_id: int) -> ModelRuntimeConfig:
        """What the card of this instance says of its engine: other than its tokenizer, that may differ."""
        return self._runtimes.get(instance_id) or ModelRuntimeConfig()


class Models:
    """Follows discovery from `start` to `close`; what it says is the last known truth, also during an outage."""

    def __init__(
        self,
        runtime: DistributedRuntime,
        router: RouterConfig,
        hub: HubConfig,
        serves_namespace: Callable[[str], bool] = lambda namespace: True,
        times: PromptTimes | None = None,
    ) -> None:
        self._runtime = runtime
        self._router = router
        self._hub = hub
        self._serves_namespace = serves_namespace
        self._times = times
        self._overrides = Overrides(runtime.instance_id)
        self._groups: dict[str, Group] = {}
        self._names: dict[str, str] = {}
        self._values: dict[str, bytes] = {}
        self._records: dict[str, Instance] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._synced = {CARDS: asyncio.Event(), INSTANCES: asyncio.Event()}
        self._more = asyncio.Event()

    async def start(self) -> None:
        """Returns when everything that was there is known and can be served."""
        self._tasks = [asyncio.create_task(self._watch(prefix)) for prefix in self._synced]
        for synced in self._synced.values():
            await synced.wait()
        loading = [group.loading for group in self._groups.values() if group.loading]
        await asyncio.gather(*loading)

    async def close(self) -> None:
        loading = [group.loading for group in self._groups.values() if group.loading]
        for task in (*self._tasks, *loading):
            task.cancel()
        await asyncio.gather(*self._tasks, *loading, return_exceptions=True)
        for group in self._groups.values():
            self._end(group)
        await asyncio.gather(*self._closing)

    def _end(self, group: Group) -> None:
        """The model is no longer served; requests that run keep their places."""
        if group.model:
            task = asyncio.create_task(group.model.router.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        group.model = None

    def served(self) -> list[ServedModel]:
        return [group.model for group in self._groups.values() if group.model and len(group.instances)]

    def set_thresholds(self, name: str, values: Mapping[str, int | float]) -> None:
        """From now on; also when the model comes again after its workers were gone."""
        self._overrides.set(name, values)
        self._apply_overrides()

    def merge_overrides(self, told: list[Override]) -> list[Override]:
        """Take over what others were told later than we; returns all that is set now."""
        self._overrides.merge(told)
        self._apply_overrides()
        return self._overrides.all()

    def _apply_overrides(self) -> None:
        for group in self._groups.values():
            values = self._overrides.of(group.name)
            if group.model and values:
                router = group.model.router
                router.thresholds = structs.replace(router.thresholds, **values)

    def readiness(self) -> dict[str, bool]:
        """Every model that workers have registered, and whether a request to it would be served."""
        return {
            name: group.model is not None and len(group.instances) > 0
            for name, group in self._groups.items()
            if group.cards
        }

    @property
    def router_id(self) -> int:
        """Who chooses here, as others know it."""
        return self._runtime.instance_id

    async def wait_for(self, name: str | None = None) -> ServedModel:
        """The model of that name, or any, as soon as it can be served; ModelError where it never will be."""
        while True:
            self._more.clear()
            group = self._groups.get(name) if name else None
            if group and group.error:
                raise group.error
            for model in self.served():
                if name in (None, model.name):
                    return model
            await self._more.wait()

    def instances(self) -> list[Instance]:
        return list(self._records.values())

    def channel(self, instance: Instance) -> Channel:
        """The way to any instance, whether it serves a model or not."""
        return self._runtime.plane.channel(instance)

    def get(self, name: str) -> ServedModel:
        group = self._groups.get(name)
        if group and group.model and len(group.instances):
            return group.model
        if group and group.cards:
            raise Unavailable(f"The model '{name}' is not ready to serve requests yet. Please retry shortly.")
        names = sorted(model.name for model in self.served())
        there = f"Served here: {', '.join(names)}." if names else "No model is served here yet."
        raise ModelNotFound(f"The model '{name}' does not exist. {there}")

    async def _watch(self, prefix: str) -> None:
        changed = self._card_changed if prefix == CARDS else self._instance_changed
        async with contextlib.aclosing(self._runtime.discovery.watch(prefix)) as changes:
            async for change in changes:
                if not isinstance(change, Synced) and not self._concerns_us(change.key.removeprefix(prefix)):
                    continue
                match change:
                    case Put(key, value):
                        changed(key.removeprefix(prefix), key, value)
                    case Delete(key):
                        changed(key.removeprefix(prefix), key, None)
                    case Synced():
                        self._synced[prefix].set()

    def _concerns_us(self, place: str) -> bool:
        return self._serves_namespace(place.partition("/")[0])

    def _instance_changed(self, place: str, key: str, value: bytes | None) -> None:
        if value is None:
            self._records.pop(place, None)
        else:
            try:
                self._records[place] = records.decode_at(key, value)
            except ValueError as error:
                log.warning("ignoring the instance record %s: %s", key, error)
                return
        self._join(place)

    def _card_changed(self, place: str, key: str, value: bytes | None) -> None:
        old = self._names.get(place)
        if old is not None and value is not None and self._values.get(place) == value:
            return  # registered again after an outage: nothing is new
        self._names.pop(place, None)
        self._values.pop(place, None)
        if old is not None:
            group = self._groups[old]
            with contextlib.suppress(ValueError):
                group.instances.remove(split_key(key)[1])
            group.remove(place)
            self._settle(group)
        if value is None:
            return
        try:
            split_key(key)
            card = msgspec.json.decode(value, type=ModelCard)
            checksum = card.checksum()
            _ = card.type
        except (ValueError, RecursionError) as error:
            log.warning("ignoring the model card %s: %s", key, error)
            return
        if not card.takes_requests:
            log.info("the worker at %s works for others (%s): it gets no requests", place, card.worker_type.value)
            return
        group = self._groups.setdefault(card.name, Group(card.name, InstanceSet(card.name, self._runtime.plane)))
        self._names[place] = card.name
        self._values[place] = value
        group.put(place, card, checksum)
        self._settle(group)
        if not group.agrees(place):
            log.warning(
                "refusing the worker at %s: its card for '%s' (%s) differs from the one being served (%s)",
                place, card.name, checksum, group.checksum,
            )  # fmt: skip
        self._join(place)

    def _settle(self, group: Group) -> None:
        """Choose the card to serve by again, where the old one has no worker left."""
        card = group.elect()
        if card is None and group.checksum is not None:
            return
        if group.loading:
            group.loading.cancel()
        group.loading = None
        if group.model:
            log.info("model '%s' is gone: its last worker left", group.name)
        self._end(group)
        group.error = None
        if card is None:
            return
        group.loading = asyncio.create_task(self._load(group, card))
        for place in group.cards:
            self._join(place)

    def _join(self, place: str) -> None:
        name = self._names.get(place)
        if name is None:
            return
        group = self._groups[name]
        record = self._records.get(place)
        if record is not None and group.agrees(place):
            try:
                group.instances.put(record)
                self._more.set()
            except ValueError as error:
                log.warning("cannot use the worker at %s: %s", place, error)
        elif record is None:
            with contextlib.suppress(ValueError):
                group.instances.remove(_instance_of(place))

    async def _load(self, group: Group, card: ModelCard) -> None:
        loaded: LoadedModel | None = None
        if card.model_input is ModelInput.Tokens:
            try:
                loaded = await asyncio.to_thread(open_card, card, self._hub)
            except ModelError as error:
                log.error("cannot serve model '%s': %s", group.name, error)
                group.error = error
                self._more.set()
                return
        router = make_router(self._router, card, group.instances, self._runtime, group.runtime_of)
        router.start()
        group.model = ServedModel(card, router, loaded, self._times)
        self._apply_overrides()
        self._more.set()
        log.info("model '%s' can be served (%s)", group.name, ", ".join(card.type.names()))


def _instance_of(place: str) -> int:
    return int(place.rpartition("/")[2], 16)
