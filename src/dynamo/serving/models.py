"""The models that can be served now: workers from discovery, grouped by the model name on their card.

Workers of one name may have cards of several versions; see `ModelGroup`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import structs

from dynamo.handoff.router.handoffs import Handoffs
from dynamo.handoff.router.prefills import Prefills
from dynamo.model import CardReader, FileError, HubConfig, LoadedModel, ModelError
from dynamo.pipeline.preprocess import PromptTimes
from dynamo.protocols.card import ModelInput
from dynamo.protocols.errors import ModelNotFound, Unavailable
from dynamo.protocols.instance import Instance
from dynamo.router import RoutingConfig, make_router
from dynamo.router.suspects import Suspects
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.membership import Member, Membership
from dynamo.runtime.names import FILES_ENDPOINT, EndpointId
from dynamo.runtime.plane.base import Channel
from dynamo.serving.card_version import CardVersion
from dynamo.serving.exchange import FrontendExchange
from dynamo.serving.model_group import ModelGroup
from dynamo.serving.overrides import Override, Overrides
from dynamo.serving.served_model import ServedModel

log = logging.getLogger(__name__)

SENDER_SECONDS = 10.0
"""How long after its card the address of a worker that sends files may become known."""


class Models:
    """Follows discovery from `start` to `close`; during an outage the last known models are served."""

    def __init__(
        self,
        runtime: DistributedRuntime,
        router: RoutingConfig,
        hub: HubConfig,
        serves: Callable[[str], bool] = lambda path: True,
        times: PromptTimes | None = None,
        migration_limit: int | None = None,
        migration_max_seq_len: int | None = None,
        restart_seconds: float = 0.0,
        wait_seconds: float = 0.0,
        exchange: bool = False,
    ) -> None:
        """`migration_limit` replaces that of the models' cards.

        A model whose last worker left is said to be restarting for `restart_seconds`; then it does not exist. Requests
        for a model that loads or restarts wait up to `wait_seconds`. With `exchange`, this frontend and others tell
        each other whom they serve and which requests end workers.
        """
        self._migration_limit = migration_limit
        self._migration_max_seq_len = migration_max_seq_len
        self._suspects = Suspects()
        self._exchange = FrontendExchange(runtime.events, self._suspects, self._all) if exchange else None
        self._restart_seconds = restart_seconds
        self._wait_seconds = wait_seconds
        self.waiting: Counter[str] = Counter()
        """Requests that wait for a worker, by model."""
        self._runtime = runtime
        self._router = router
        self._reader = CardReader(hub, runtime.plane.channel)
        self._times = times
        self._overrides = Overrides(runtime.instance_id)
        self._moved: Counter[int] = Counter()
        """Requests that were moved away, by the instance that failed them."""
        self._groups: dict[str, ModelGroup] = {}
        self._prefills = Prefills(runtime, router)
        self._expected: set[str] = set()
        """Models that this process is about to register."""
        self._workers_known = False
        self._members = Membership(runtime.discovery, self._member_changed, cards=True, serves=serves)
        self._closing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Return once all current workers are known and their models are loaded."""
        if self._exchange:
            self._exchange.start()
        await self._members.start()
        self._workers_known = True
        # A card that changes meanwhile replaces its loading task by another.
        while loading := [task for task in self._loading() if not task.done()]:
            done, _ = await asyncio.wait(loading)
            for task in done:
                if not task.cancelled():
                    task.result()

    async def close(self) -> None:
        if self._exchange:
            await self._exchange.close()
        await self._members.close()
        loading, versions = self._loading(), list(self._versions())
        for group in self._groups.values():
            group.end_restart()
        for version in versions:
            version.stop_loading()
        await asyncio.gather(*loading, return_exceptions=True)
        for version in versions:
            self._end(version)
        await asyncio.gather(*self._closing)
        await self._prefills.close()

    def _versions(self) -> Iterator[CardVersion]:
        for group in self._groups.values():
            yield from group.versions.values()

    def _loading(self) -> list[asyncio.Task[None]]:
        return [version.loading for version in self._versions() if version.loading]

    def _end(self, version: CardVersion) -> None:
        """Stop serving a version; running requests keep their reservations."""
        version.stop_loading()

        async def close() -> None:
            if version.model:
                await version.model.router.close()
            await version.instances.close()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def served(self) -> list[ServedModel]:
        """One of each name: where there are several versions, the oldest."""
        return [group.model for group in self._groups.values() if group.model and group.ready]

    def versions(self) -> list[ServedModel]:
        """All that get requests, of which several may have one name."""
        return [model for group in self._groups.values() for model in group.ready_models()]

    def _all(self) -> list[ServedModel]:
        return [version.model for version in self._versions() if version.model]

    def set_thresholds(self, name: str, values: Mapping[str, int | float | None]) -> None:
        """In effect from now on, even if all workers of the model leave and others join."""
        self._overrides.set(name, values)
        self._apply_overrides()

    def merge_overrides(self, overrides: Iterable[Override]) -> list[Override]:
        """Adopt the overrides that are newer than ours; returns all overrides in effect."""
        self._overrides.merge(overrides)
        self._apply_overrides()
        return self._overrides.all()

    def _apply_overrides(self) -> None:
        for model in self._all():
            if values := self._overrides.of(model.name):
                model.router.thresholds = structs.replace(model.router.thresholds, **values)

    def readiness(self) -> dict[str, bool]:
        """Every model that workers have registered, and whether a request to it would be served."""
        return {name: group.ready for name, group in self._groups.items() if group.members}

    def failures(self) -> dict[str, ModelError]:
        """Why models that workers have registered cannot be served here."""
        return {name: group.error for name, group in self._groups.items() if group.members and group.error}

    @property
    def router_id(self) -> int:
        """The id under which other routers know this one."""
        return self._runtime.instance_id

    def expect(self, name: str) -> None:
        """This process loads the model and will register it: until then requests for it are asked to retry."""
        self._expected.add(name)

    @property
    def is_loading(self) -> bool:
        """No request can be served yet, but a model is on its way."""
        if not self._workers_known:
            return True
        coming = self._expected or any(group.is_loading for group in self._groups.values())
        return bool(coming) and not self.served()

    async def wait_for(self, name: str | None = None) -> ServedModel:
        """Wait until this model, or any, is served; raises ModelError if its card cannot be opened."""
        while True:
            self._changed.clear()
            group = self._groups.get(name) if name else None
            if group and group.error and not group.ready:
                raise group.error
            for model in self.served():
                if name in (None, model.name):
                    return model
            await self._changed.wait()

    def instances(self) -> list[Instance]:
        """All instances of all endpoints, whether they serve a model or not."""
        return [member.instance for member in self._members if member.instance]

    def workers(self) -> list[Member]:
        """All workers with a model card, also those that serve other workers only or whose card is rejected."""
        return [member for member in self._members if member.card]

    def health(self, worker: Member) -> str:
        """See `InstanceSet.health`; a worker whose card differs from the one of its namespace is `refused`."""
        if group := self._group_of(worker):
            version = group.version_of(worker)
            return version.instances.health(worker.instance_id) if version else "refused"
        return "ready" if worker.instance and worker.instance.ready else "unhealthy"

    def moved(self, worker: Member) -> int:
        """How many requests were moved away from it."""
        return self._moved[worker.instance_id]

    def channel(self, instance: Instance) -> Channel:
        return self._runtime.plane.channel(instance)

    def listed(self) -> list[ServedModel]:
        """Those that a request can name: also a model without a worker, if requests wait for one."""
        return [
            group.model for group in self._groups.values()
            if group.model and (group.ready or self._wait_seconds)
        ]  # fmt: skip

    async def arrive(self, name: str) -> ServedModel:
        """As `get`, once the model has a worker; a request waits for one as long as it may."""
        try:
            return self.get(name)
        except Unavailable:
            if not self._wait_seconds:
                raise
        self.waiting[name] += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                while True:
                    self._changed.clear()
                    try:
                        return self.get(name)
                    except Unavailable:
                        await self._changed.wait()
        except TimeoutError:
            return self.get(name)
        finally:
            self.waiting[name] -= 1
            if name not in self._groups:
                del self.waiting[name]  # a client may ask for any name while workers are not known

    def get(self, name: str) -> ServedModel:
        group = self._groups.get(name)
        if group and (model := group.next()):
            return model
        if name in self._expected or (group and group.is_loading):
            raise Unavailable(f"The model '{name}' is loading. Please retry shortly.")
        if group and group.members:
            raise Unavailable(f"The model '{name}' is not ready to serve requests yet. Please retry shortly.")
        if group and group.restarting:
            raise Unavailable(
                f"The model '{name}' has lost its last worker; another may be starting. Please retry shortly."
            )
        if not self._workers_known:
            raise Unavailable("This server is loading its models. Please retry shortly.")
        names = sorted(model.name for model in self.served())
        there = f"Served here: {', '.join(names)}." if names else "No model is served here yet."
        raise ModelNotFound(f"The model '{name}' does not exist. {there}")

    def _member_changed(self, before: Member, after: Member) -> None:
        self._prefills.changed(before, after)
        if before.card != after.card:
            group = self._group_of(before)
            if group:
                group.remove(before)
                self._settle(group)
                self._log_readiness(group)
            self._add(after)
        elif group := self._group_of(after):
            group.update(after)
        if (after.card and after.card != before.card) or (after.instance and after.endpoint.name == FILES_ENDPOINT):
            self._sender_joined(after.instance_id)
        if group := self._group_of(after):
            self._log_readiness(group)
        self._changed.set()

    def _sender_joined(self, instance_id: int) -> None:
        """If a model lacks files, try again: this instance may have them."""
        for group in self._groups.values():
            if group.has_worker(instance_id):
                for version in group.versions.values():
                    version.senders_joined += 1
                    self._retry(group, version)

    def _retry(self, group: ModelGroup, version: CardVersion) -> None:
        """Load the model again if its files could not be fetched."""
        if isinstance(version.error, FileError):
            self._begin_loading(group, version)

    def _begin_loading(self, group: ModelGroup, version: CardVersion) -> None:
        version.stop_loading()
        version.error = None
        version.loading = asyncio.create_task(self._load(group, version))

    def _group_of(self, member: Member) -> ModelGroup | None:
        group = self._groups.get(member.card.name) if member.card else None
        return group if group and member.path in group.members else None

    def _add(self, member: Member) -> None:
        card = member.card
        if card is None:
            return
        if not card.takes_requests:
            if not card.prefills:
                log.info("the worker at %s serves other workers (%s)", member.path, card.worker_type.value)
            return
        group = self._groups.get(card.name)
        if group is None:
            group = self._groups[card.name] = ModelGroup(card.name)
            self.waiting.setdefault(card.name, 0)  # seen from the beginning, also where no request ever came
        group.add(member, card)
        self._expected.discard(card.name)
        self._settle(group)
        if not group.version_of(member):
            log.warning(
                "refusing the worker at %s: its card for '%s' (%s) differs from the one being served (%s)",
                member.path, card.name, card.checksum(), group.elected(member),
            )  # fmt: skip
        group.update(member)

    def _settle(self, group: ModelGroup) -> None:
        """Serve the cards that count now, and no others.

        If all workers have left, the model is kept for a while: its worker may be replaced.
        """
        if not group.members and group.model and self._restart_seconds:
            log.info("model '%s' has no worker: waiting %g s for one", group.name, self._restart_seconds)
            loop = asyncio.get_running_loop()
            group.restarting = loop.call_later(self._restart_seconds, self._not_restarted, group)
            return
        group.end_restart()
        self._elect(group)

    def _not_restarted(self, group: ModelGroup) -> None:
        group.end_restart()
        self._elect(group)
        self._changed.set()

    def _elect(self, group: ModelGroup) -> None:
        wanted = group.elect()
        for checksum in group.versions.keys() - wanted.keys():
            self._end(group.versions.pop(checksum))
            if not wanted:
                log.info("model '%s' is gone: its last worker left", group.name)
        for checksum in wanted.keys() - group.versions.keys():
            instances = InstanceSet(group.name, self._runtime.plane, self._moved)
            version = group.versions[checksum] = CardVersion(wanted[checksum], instances, group.runtime_of)
            self._begin_loading(group, version)
            for member in tuple(group.members.values()):
                group.update(member)

    async def _senders(self, group: ModelGroup, version: CardVersion) -> list[Instance]:
        """The instances that send the files of this version. Cards and addresses may arrive in either order."""
        deadline = asyncio.get_running_loop().time() + SENDER_SECONDS
        while True:
            self._changed.clear()
            members = group.senders(version)
            found = [self._members.find(_files_of(one.endpoint), one.instance_id) for one in members]
            known = [one.instance for one in found if one and one.instance]
            if known or not members:
                return known
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return []

    async def _load(self, group: ModelGroup, version: CardVersion) -> None:
        card = version.card
        loaded: LoadedModel | None = None
        while card.model_input is ModelInput.Tokens and loaded is None:
            joined = version.senders_joined
            try:
                loaded = await self._reader.open(card, lambda: self._senders(group, version))
            except ModelError as error:
                if isinstance(error, FileError) and version.senders_joined != joined:
                    log.warning("model '%s': %s; trying again with the worker that joined", group.name, error)
                    continue
                self._loading_failed(group, version, error)
                return
        router = make_router(self._router, card, version.instances, self._runtime, group.runtime_of)
        router.start()
        if self._migration_limit is not None:
            card = structs.replace(card, migration_limit=self._migration_limit)
        handoffs = Handoffs(self._prefills.pool(group.name), self._router.handoff)
        version.model = ServedModel(
            card,
            router,
            loaded,
            self._times,
            self._migration_max_seq_len,
            handoffs,
            version.resumes_guided,
            self._suspects,
            group.ready_models,
        )
        if self._exchange:
            self._exchange.follow(version.model)
        self._apply_overrides()
        self._log_readiness(group)
        self._changed.set()

    def _log_readiness(self, group: ModelGroup) -> None:
        """A card and an address may arrive in either order: a model can be served with both."""
        if group.ready != group.was_ready:
            group.was_ready = group.ready
            if group.model and group.ready:
                log.info("model '%s' can be served (%s)", group.name, ", ".join(group.model.card.type.names()))

    def _loading_failed(self, group: ModelGroup, version: CardVersion, error: ModelError) -> None:
        version.error = error
        if isinstance(error, FileError):
            # Without a change in discovery too: a disk may be freed, a network healed.
            delay = version.pauses.pause()
            version.retry = asyncio.get_running_loop().call_later(delay, self._retry, group, version)
            again = f"; trying again in {delay:g} s, or as soon as a worker joins"
        else:
            again = ""
        log.error("cannot serve model '%s': %s%s", group.name, error, again)
        self._changed.set()


def _files_of(endpoint: EndpointId) -> EndpointId:
    return EndpointId(endpoint.namespace, endpoint.component, FILES_ENDPOINT)
