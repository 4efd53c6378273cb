"""The instances somebody may send to: which are there, which are fit, and the way to each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from dynamo.protocols.errors import DynamoException, Unavailable
from dynamo.protocols.instance import Instance
from dynamo.runtime.plane.base import Channel, RequestPlane

log = logging.getLogger(__name__)

INHIBITED_SECONDS = 5.0
"""How long an instance that failed is passed over, unless discovery says something new about it first."""

Choose = Callable[[Sequence[int]], int]
Follower = Callable[[int, Instance | None], None]
"""Told an instance that came or changed, or, with None, the id of one that left."""


class InstanceSet:
    """Kept true by whoever watches discovery."""

    def __init__(self, name: str, plane: RequestPlane) -> None:
        self.name = name
        self._plane = plane
        self._instances: dict[int, Instance] = {}
        self._channels: dict[int, Channel] = {}
        self._inhibited: dict[int, float] = {}
        self._changed = asyncio.Event()
        self._followers: list[Follower] = []
        self._ids: tuple[int, ...] | None = ()

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: int) -> bool:
        return instance_id in self._instances

    def put(self, instance: Instance) -> None:
        """Add or replace an instance; a ValueError says why it cannot be used from here."""
        if instance.transport != self._plane.transport:
            raise ValueError(f"it is served over {instance.transport}, this process uses {self._plane.transport}")
        self._inhibited.pop(instance.instance_id, None)
        if self._instances.get(instance.instance_id) != instance:
            self._instances[instance.instance_id] = instance
            self._channels[instance.instance_id] = self._plane.channel(instance)
            self._tell(instance.instance_id, instance)
        self._changed.set()
        self._changed.clear()

    def remove(self, instance_id: int) -> None:
        """Out of rotation; streams that run on its connection go on."""
        known = self._instances.pop(instance_id, None)
        self._channels.pop(instance_id, None)
        self._inhibited.pop(instance_id, None)
        if known is not None:
            self._tell(instance_id, None)

    def tell_again(self, instance_id: int) -> None:
        """What else is known of an instance has changed: whoever follows should look again."""
        if known := self._instances.get(instance_id):
            self._tell(instance_id, known)

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tell of all that are there now and of every change; returns a function that ends it."""
        self._followers.append(follower)
        for instance_id, instance in self._instances.items():
            follower(instance_id, instance)

        def end() -> None:
            if follower in self._followers:
                self._followers.remove(follower)

        return end

    def _tell(self, instance_id: int, instance: Instance | None) -> None:
        self._ids = None
        for follower in tuple(self._followers):
            follower(instance_id, instance)

    def ids(self) -> list[int]:
        return list(self._instances)

    def all(self) -> list[Instance]:
        return list(self._instances.values())

    async def wait(self) -> list[int]:
        while not self._instances:
            await self._changed.wait()
        return self.ids()

    def routable(self, avoid: Collection[int] = ()) -> list[int]:
        """The instances to choose from: not draining, not failed a moment ago, not in `avoid`.

        When all of them failed a moment ago, trying again beats refusing.
        """
        living = [id for id, channel in self._channels.items() if id not in avoid and not channel.draining]
        if not self._inhibited:
            return living
        now = asyncio.get_running_loop().time()
        return [id for id in living if self._inhibited.get(id, 0.0) < now] or living

    def fit(self, avoid: Collection[int] = ()) -> tuple[int, ...]:
        """As `routable`, without asking each whether it drains: whoever chooses asks the one chosen."""
        if not self._inhibited and not avoid:
            if self._ids is None:
                self._ids = tuple(self._instances)
            return self._ids
        living = tuple(id for id in self._instances if id not in avoid)
        now = asyncio.get_running_loop().time()
        return tuple(id for id in living if self._inhibited.get(id, 0.0) < now) or living

    def inhibit(self, instance_id: int) -> None:
        if instance_id in self._instances:
            self._inhibited[instance_id] = asyncio.get_running_loop().time() + INHIBITED_SECONDS

    def unreachable(self, instance_id: int, error: DynamoException) -> None:
        log.warning("instance %x of %s: %s", instance_id, self.name, error)
        self.inhibit(instance_id)

    def channel(self, instance_id: int) -> Channel:
        channel = self._channels.get(instance_id)
        if channel is None:
            raise Unavailable(f"no instance {instance_id} of {self.name}")
        return channel

    async def open(self, choose: Choose) -> tuple[int, Channel]:
        """A chosen, connected instance; one that cannot be reached is passed over for the next, until none is left."""
        failed: set[int] = set()
        last: DynamoException | None = None
        while routable := self.routable(failed):
            instance_id = choose(routable)
            channel = self.channel(instance_id)
            if channel.ready:
                return instance_id, channel
            try:
                await channel.open()
            except DynamoException as error:
                self.unreachable(instance_id, error)
                failed.add(instance_id)
                last = error
            else:
                return instance_id, channel
        raise self.nobody(last) from last

    def nobody(self, last: DynamoException | None = None) -> Unavailable:
        """What to tell a request that nobody can take; `last` is why the last one tried could not be reached."""
        if last:
            return Unavailable(f"no instance of {self.name} can be reached: {last.message}")
        return Unavailable(f"no instance of {self.name} is there to serve this")
