"""The workers that registered one model name, and which of them get its requests."""

from __future__ import annotations

import asyncio
from collections import Counter

from dynamo.model import ModelError
from dynamo.process.backoff import Backoff
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.membership import Member
from dynamo.serving.served_model import ServedModel

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 64.0
"""The first and the longest pause, in seconds, before the files of a model are fetched again."""


class ModelGroup:
    """All workers of one model name. The oldest card is served; a worker with a differing card gets no requests."""

    def __init__(self, name: str, instances: InstanceSet) -> None:
        self.name = name
        self.instances = instances
        self.members: dict[str, Member] = {}
        self.served_checksum: str | None = None
        self.card: ModelCard | None = None
        """The card being served or loaded."""
        self.model: ServedModel | None = None
        self.loading: asyncio.Task[None] | None = None
        self.retry: asyncio.TimerHandle | None = None
        """Set while the model waits for another attempt to get its files."""
        self.restarting: asyncio.TimerHandle | None = None
        """Set while the model has no worker and waits for one to join again."""
        self.pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        """Between attempts to get the files."""
        self.error: ModelError | None = None
        """Why the card cannot be opened here, if it cannot."""
        self.was_reachable = False
        """A worker with the served card has had an address."""
        self.was_ready = False
        """The log says that it can be served."""
        self.senders_joined = 0
        """How often a worker that may send the model's files has joined."""
        self._checksums: dict[str, str] = {}
        self._workers_by_checksum: Counter[str] = Counter()
        self._runtimes: dict[int, ModelRuntimeConfig] = {}

    @property
    def ready(self) -> bool:
        return self.model is not None and len(self.instances) > 0

    @property
    def is_loading(self) -> bool:
        """A worker has registered the model, and it has not been served yet."""
        if not self.members or self.error or self.ready:
            return False
        return self.model is None or not self.was_reachable

    def add(self, member: Member, card: ModelCard) -> None:
        checksum = card.checksum()
        self.members[member.path] = member
        self._checksums[member.path] = checksum
        self._workers_by_checksum[checksum] += 1
        self._runtimes[member.instance_id] = card.runtime_config

    def remove(self, member: Member) -> None:
        del self.members[member.path]
        self._workers_by_checksum[self._checksums.pop(member.path)] -= 1
        self._runtimes.pop(member.instance_id, None)
        self.instances.remove(member.instance_id)

    def update(self, member: Member) -> None:
        """Send requests to this worker exactly while its address is known and its card is the one being served."""
        self.members[member.path] = member
        if member.instance is None:
            self.instances.remove(member.instance_id)
        elif self.agrees(member):
            self.instances.put(member.instance)
            self.was_reachable = True

    def elect(self) -> ModelCard | None:
        """Serve the oldest card and return it, if no worker has the card that was served until now."""
        if self.served_checksum is not None and self._workers_by_checksum[self.served_checksum]:
            return None
        for path, member in self.members.items():
            self.served_checksum = self._checksums[path]
            return member.card
        self.served_checksum = None
        return None

    def agrees(self, member: Member) -> bool:
        return self._checksums[member.path] == self.served_checksum

    def has_worker(self, instance_id: int) -> bool:
        return instance_id in self._runtimes

    def stop_loading(self) -> None:
        if self.loading:
            self.loading.cancel()
        if self.retry:
            self.retry.cancel()
        self.loading = self.retry = None

    def end_restart(self) -> None:
        if self.restarting:
            self.restarting.cancel()
        self.restarting = None

    def senders(self) -> list[Member]:
        """The workers that send the files of the served card."""
        return [one for one in self.members.values() if self.agrees(one) and one.card and one.card.serves_files]

    def runtime_of(self, instance_id: int) -> ModelRuntimeConfig:
        """The engine's capacities on this worker's card, in which workers of one model may differ."""
        return self._runtimes.get(instance_id) or ModelRuntimeConfig()

    def resumes_guided(self) -> bool:
        """Whether each worker that may get a request can continue another's guided answer."""
        return all(self.runtime_of(id).resumes_guided for id in self.instances.ids())
