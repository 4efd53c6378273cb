"""The workers of a model that have equal cards: a request prepared for one of them may go to any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dynamo.model import ModelError
from dynamo.process.backoff import Backoff
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.membership import Member
from dynamo.serving.served_model import ServedModel

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 64.0
"""The first and the longest pause, in seconds, before the files of a model are fetched again."""


class CardVersion:
    """From its first worker until its last one has left."""

    def __init__(
        self, card: ModelCard, instances: InstanceSet, runtime_of: Callable[[int], ModelRuntimeConfig]
    ) -> None:
        self.card = card
        self.instances = instances
        self.runtime_of = runtime_of
        self.model: ServedModel | None = None
        """Once its files were read."""
        self.loading: asyncio.Task[None] | None = None
        self.retry: asyncio.TimerHandle | None = None
        """Set while it waits for another attempt to get its files."""
        self.pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        """Between attempts to get the files."""
        self.error: ModelError | None = None
        """Why the card cannot be opened here, if it cannot."""
        self.was_reachable = False
        """One of its workers has had an address."""
        self.senders_joined = 0
        """How often a worker that may send the model's files has joined."""

    @property
    def ready(self) -> bool:
        return self.model is not None and len(self.instances) > 0

    @property
    def is_loading(self) -> bool:
        """It has not been served yet."""
        return not self.error and not self.ready and (self.model is None or not self.was_reachable)

    def update(self, member: Member) -> None:
        """Send requests to this worker exactly while its address is known."""
        if member.instance is None:
            self.instances.remove(member.instance_id)
        else:
            self.instances.put(member.instance)
            self.was_reachable = True

    def stop_loading(self) -> None:
        if self.loading:
            self.loading.cancel()
        if self.retry:
            self.retry.cancel()
        self.loading = self.retry = None

    def resumes_guided(self) -> bool:
        """Whether each worker that may get a request can continue another's guided answer."""
        return all(self.runtime_of(id).resumes_guided for id in self.instances.ids())
