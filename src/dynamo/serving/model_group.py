"""The workers that registered one model name, and which of them get its requests."""

from __future__ import annotations

import asyncio
import itertools

from dynamo.model import ModelError
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.runtime.membership import Member
from dynamo.serving.card_version import CardVersion
from dynamo.serving.served_model import ServedModel


class ModelGroup:
    """All workers of one model name.

    The workers of a namespace have one card, the oldest one; a worker there with another card gets no requests. Those
    of another namespace may differ, as the next generation of a deployment does: requests are shared between the
    versions by their numbers of workers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.versions: dict[str, CardVersion] = {}
        """By the card's checksum, the oldest first."""
        self.restarting: asyncio.TimerHandle | None = None
        """Set while the model has no worker and waits for one to join again."""
        self.was_ready = False
        """The log says that it can be served."""
        self._checksums: dict[str, str] = {}
        """By member."""
        self._elected: dict[str, str] = {}
        """The checksum of the card that counts, by namespace."""
        self._runtimes: dict[int, ModelRuntimeConfig] = {}
        self._turns = itertools.count()

    @property
    def ready(self) -> bool:
        return any(version.ready for version in self.versions.values())

    @property
    def is_loading(self) -> bool:
        """A worker has registered the model, and it has not been served yet."""
        if not self.members or self.ready:
            return False
        return any(version.is_loading for version in self.versions.values())

    @property
    def error(self) -> ModelError | None:
        """Why a card of it cannot be opened here, if one cannot."""
        return next((version.error for version in self.versions.values() if version.error), None)

    @property
    def model(self) -> ServedModel | None:
        """The oldest version that can be served; one whose workers are away if there is no other."""
        loaded = [version for version in self.versions.values() if version.model]
        return next((version.model for version in loaded if version.ready), loaded[0].model if loaded else None)

    def next(self) -> ServedModel | None:
        """The version for the next request."""
        versions = self.versions.values()
        if len(versions) == 1:
            [only] = versions
            return only.model if only.ready else None
        ready = [version for version in versions if version.ready]
        if not ready:
            return None
        shares = [len(version.instances.routable()) for version in ready]
        turn = next(self._turns) % (sum(shares) or 1)
        for version, bound in zip(ready, itertools.accumulate(shares), strict=True):
            if turn < bound:
                return version.model
        return ready[0].model

    def ready_models(self) -> list[ServedModel]:
        return [version.model for version in self.versions.values() if version.model and version.ready]

    def add(self, member: Member, card: ModelCard) -> None:
        self.members[member.path] = member
        self._checksums[member.path] = card.checksum()
        self._runtimes[member.instance_id] = card.runtime_config

    def remove(self, member: Member) -> None:
        if version := self.version_of(member):
            version.instances.remove(member.instance_id)
        del self.members[member.path]
        del self._checksums[member.path]
        self._runtimes.pop(member.instance_id, None)

    def update(self, member: Member) -> None:
        self.members[member.path] = member
        if version := self.version_of(member):
            version.update(member)

    def elect(self) -> dict[str, ModelCard]:
        """The cards to serve now, by their checksums: that of each namespace until its last worker has left, then the
        next oldest one there."""
        kept = {(member.endpoint.namespace, self._checksums[path]) for path, member in self.members.items()}
        self._elected = {place: checksum for place, checksum in self._elected.items() if (place, checksum) in kept}
        for path, member in self.members.items():
            self._elected.setdefault(member.endpoint.namespace, self._checksums[path])
        wanted: dict[str, ModelCard] = {}
        for path, member in self.members.items():
            checksum = self._checksums[path]
            if member.card and self._elected[member.endpoint.namespace] == checksum:
                wanted.setdefault(checksum, member.card)
        return wanted

    def elected(self, member: Member) -> str | None:
        """The checksum of the card that counts in the member's namespace."""
        return self._elected.get(member.endpoint.namespace)

    def version_of(self, member: Member) -> CardVersion | None:
        """None for a worker whose card differs from the one that counts."""
        checksum = self._checksums[member.path]
        return self.versions.get(checksum) if self.elected(member) == checksum else None

    def has_worker(self, instance_id: int) -> bool:
        return instance_id in self._runtimes

    def end_restart(self) -> None:
        if self.restarting:
            self.restarting.cancel()
        self.restarting = None

    def senders(self, version: CardVersion) -> list[Member]:
        """The workers that send the files of this version."""
        return [
            one for one in self.members.values()
            if one.card and one.card.serves_files and self.version_of(one) is version
        ]  # fmt: skip

    def runtime_of(self, instance_id: int) -> ModelRuntimeConfig:
        """The engine's capacities on this worker's card, in which workers of one model may differ."""
        return self._runtimes.get(instance_id) or ModelRuntimeConfig()
