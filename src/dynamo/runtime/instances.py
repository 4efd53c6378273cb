"""The instances that requests may be sent to: which exist, which are usable, and the channel to each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec import structs

from dynamo.protocols.errors import DynamoException, Unavailable
from dynamo.protocols.instance import Instance
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.breaker import Breaker, answers
from dynamo.runtime.plane.base import Channel, RequestPlane

log = logging.getLogger(__name__)

MOST_MOVED = 1024
"""Instances whose moved requests are counted: the last ones that failed a request."""

Choose = Callable[[Sequence[int]], int]
OnChange = Callable[[int, Instance | None], None]
"""Called with an instance that joined or changed, or with the id of one that left and None."""


class Placed(Protocol):
    """An instance that was chosen for a request."""

    instance_id: int

    async def connect(self) -> None:
        """Raises DynamoException if the instance cannot be reached."""


P = TypeVar("P", bound=Placed)


@dataclass
class Chosen:
    instance_id: int
    channel: Channel

    async def connect(self) -> None:
        if not self.channel.ready:
            await self.channel.open()


class InstanceSet:
    """The instances of one endpoint or model. Its owner follows discovery, keeps it up to date and closes it.

    An instance that fails is passed over until a probe of it is answered, or discovery reports a change of it.
    """

    def __init__(self, name: str, plane: RequestPlane, moved: Counter[int] | None = None) -> None:
        """`moved` counts the requests that are moved away, by the instance that failed them."""
        self.name = name
        self._plane = plane
        self._instances: dict[int, Instance] = {}
        self._channels: dict[int, Channel] = {}
        self._breakers: dict[int, Breaker] = {}
        """The circuit breakers of the instances that failed and have not worked since."""
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._probing: set[asyncio.Task[None]] = set()
        """All probes that have not ended, cancelled ones too."""
        self._not_ready: set[int] = set()
        """Instances that fail their own health checks."""
        self._taken_out: set[int] = set()
        """Instances that an administrator has taken out of rotation."""
        self._moved: Counter[int] = Counter() if moved is None else moved
        self._added = asyncio.Event()
        self._followers: list[OnChange] = []
        self._ids: tuple[int, ...] | None = ()
        """The keys of `_instances`, until they change: the same object tells the KV router that nothing changed."""

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: int) -> bool:
        return instance_id in self._instances

    def update(self, instance_id: int, instance: Instance | None) -> None:
        """Apply what discovery now says about an instance; None if it left."""
        if instance is None:
            self.remove(instance_id)
        else:
            self.put(instance)

    def put(self, instance: Instance) -> None:
        """Add or replace an instance. One served over another transport is left out: it cannot be reached from here."""
        instance_id = instance.instance_id
        if instance.transport != self._plane.transport:
            here = self._plane.transport
            log.warning(
                "cannot use worker %s of %s: it is served over %s, this process uses %s",
                worker_name(instance_id), self.name, instance.transport, here,
            )  # fmt: skip
            self.remove(instance_id)
            return
        if instance.ready:
            self._not_ready.discard(instance_id)
            self._forget_failures(instance_id)
        else:
            self._not_ready.add(instance_id)
        if instance.draining:
            self._taken_out.add(instance_id)
        else:
            self._taken_out.discard(instance_id)
        # A follower that is told of a change begins anew with the instance; its health is no such change.
        known = structs.replace(instance, ready=True, draining=False)
        if self._instances.get(instance_id) != known:
            self._instances[instance_id] = instance = known
            self._channels[instance_id] = self._plane.channel(instance)
            self._notify(instance_id, instance)
        self._added.set()
        self._added.clear()

    def remove(self, instance_id: int) -> None:
        """Send it no more requests; running streams on its connection continue."""
        known = self._instances.pop(instance_id, None)
        self._channels.pop(instance_id, None)
        self._forget_failures(instance_id)
        self._not_ready.discard(instance_id)
        self._taken_out.discard(instance_id)
        if known is not None:
            self._notify(instance_id, None)

    def refresh(self, instance_id: int) -> None:
        """Report the instance to followers again, because something related to it, such as its card, has changed."""
        if known := self._instances.get(instance_id):
            self._notify(instance_id, known)

    def follow(self, follower: OnChange) -> Callable[[], None]:
        """Report all current instances and every change to `follower`; returns a function that stops that."""
        self._followers.append(follower)
        for instance_id, instance in tuple(self._instances.items()):
            follower(instance_id, instance)

        def end() -> None:
            if follower in self._followers:
                self._followers.remove(follower)

        return end

    def _notify(self, instance_id: int, instance: Instance | None) -> None:
        self._ids = None
        for follower in tuple(self._followers):
            follower(instance_id, instance)

    def ids(self) -> list[int]:
        return list(self._instances)

    def all(self) -> list[Instance]:
        return list(self._instances.values())

    async def wait(self) -> list[int]:
        while not self._instances:
            await self._added.wait()
        return self.ids()

    async def joined(self, *, within: float) -> None:
        """Wait until an instance joins or changes, but no longer than `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._added.wait()

    def routable(self, avoid: Collection[int] = ()) -> tuple[int, ...]:
        """The instances to choose from: not draining, not failing, not in `avoid`."""
        return self.available({*avoid, *self.draining()})

    def available(self, avoid: Collection[int] = ()) -> tuple[int, ...]:
        """The instances that do not fail and are not in `avoid`, draining ones included.

        If all of them fail, all are returned: trying again beats rejecting.
        """
        if not self._breakers and not self._not_ready and not avoid:
            if self._ids is None:
                self._ids = tuple(self._instances)
            return self._ids
        allowed = tuple(id for id in self._instances if id not in avoid)
        return tuple(id for id in allowed if self._in_rotation(id)) or allowed

    def _in_rotation(self, instance_id: int) -> bool:
        breaker = self._breakers.get(instance_id)
        return instance_id not in self._not_ready and (breaker is None or breaker.allows)

    def health(self, instance_id: int) -> str:
        """`ready`, `draining`, `unhealthy` (fails its own health checks), or `failing` (fails requests or probes)."""
        channel = self._channels.get(instance_id)
        if channel is None:
            return "unreachable"
        if channel.draining or instance_id in self._taken_out:
            return "draining"
        if instance_id in self._not_ready:
            return "unhealthy"
        return "ready" if self._in_rotation(instance_id) else "failing"

    def draining(self) -> list[int]:
        return [*[id for id, channel in self._channels.items() if channel.draining], *self._taken_out]

    def is_draining(self, instance_id: int) -> bool:
        """Raises Unavailable for an instance that is not there."""
        return self.channel(instance_id).draining or instance_id in self._taken_out

    def request_moved(self, instance_id: int) -> None:
        """A request goes on elsewhere, because this instance failed."""
        self._moved[instance_id] += 1
        if len(self._moved) > MOST_MOVED:
            del self._moved[next(iter(self._moved))]

    def inhibit(self, instance_id: int) -> None:
        """Pass over an instance that broke a stream, hangs or cannot be reached until it answers a probe."""
        if instance_id in self._instances and self._breaker(instance_id).open():
            self._probe(instance_id)

    def request_failed(self, instance_id: int) -> None:
        """The engine failed a request. Several failures in a row take the instance out of rotation."""
        if instance_id in self._instances and self._breaker(instance_id).error():
            log.warning("worker %s of %s fails its requests: it is passed over", worker_name(instance_id), self.name)
            self._probe(instance_id)

    def request_sent(self, instance_id: int) -> None:
        if breaker := self._breakers.get(instance_id):
            breaker.sent()

    def request_answered(self, instance_id: int) -> None:
        if instance_id in self._breakers:
            self._forget_failures(instance_id)

    def _breaker(self, instance_id: int) -> Breaker:
        breaker = self._breakers.get(instance_id)
        if breaker is None:
            breaker = self._breakers[instance_id] = Breaker(asyncio.get_running_loop().time)
        return breaker

    def _probe(self, instance_id: int) -> None:
        if instance_id not in self._probes:
            probe = self._probes[instance_id] = asyncio.create_task(self._until_it_answers(instance_id))
            self._probing.add(probe)
            probe.add_done_callback(self._probing.discard)

    async def _until_it_answers(self, instance_id: int) -> None:
        """Probe the instance until it answers, with growing pauses. Client requests never wait for such an instance."""
        breaker, channel = self._breakers[instance_id], self._channels[instance_id]
        health_check = self._instances[instance_id].health_check
        while True:
            await asyncio.sleep(breaker.pause)
            if await answers(channel, health_check):
                break
            breaker.probe_failed()
        del self._probes[instance_id]
        if health_check is None:
            breaker.half_open()
        else:
            del self._breakers[instance_id]
            log.info("worker %s of %s answers again", worker_name(instance_id), self.name)

    def _forget_failures(self, instance_id: int) -> None:
        self._breakers.pop(instance_id, None)
        if probe := self._probes.pop(instance_id, None):
            probe.cancel()

    async def close(self) -> None:
        for instance_id in tuple(self._probes):
            self._forget_failures(instance_id)
        await asyncio.gather(*self._probing, return_exceptions=True)

    def mark_unreachable(self, instance_id: int, error: DynamoException) -> None:
        log.warning("worker %s of %s: %s", worker_name(instance_id), self.name, error)
        self.inhibit(instance_id)

    def channel(self, instance_id: int) -> Channel:
        channel = self._channels.get(instance_id)
        if channel is None:
            raise Unavailable(f"no instance {instance_id} of {self.name}")
        return channel

    async def open(self, choose: Choose) -> Channel:
        """The channel of an instance that can be reached."""

        async def chosen(*, avoid: Collection[int]) -> Chosen:
            routable = self.routable(avoid)
            if not routable:
                raise self.none_reachable()
            instance_id = choose(routable)
            return Chosen(instance_id, self.channel(instance_id))

        return (await self.reach(chosen, set())).channel

    async def reach(
        self,
        place: Callable[..., Awaitable[P]],
        failed: set[int],
        *,
        pinned: bool = False,
        last: DynamoException | None = None,
    ) -> P:
        """Choose an instance with `place(avoid=failed)` and connect; if that fails, choose among the others.

        Those that cannot be reached are added to `failed`; if only one will do, `pinned`, its error is raised. `last`
        is why the last one of an earlier try could not be reached.
        """
        while True:
            try:
                placed = await place(avoid=failed)
            except Unavailable:
                if last is None:
                    raise
                raise self.none_reachable(last) from last
            try:
                await placed.connect()
                return placed
            except DynamoException as error:
                if pinned:
                    raise
                self.mark_unreachable(placed.instance_id, error)
                failed.add(placed.instance_id)
                last = error

    def none_reachable(self, last: DynamoException | None = None) -> Unavailable:
        """The error for a request without an instance; `last` is why the last one tried could not be reached."""
        if last:
            return Unavailable(f"no instance of {self.name} can be reached: {last.message}")
        return Unavailable(f"no instance of {self.name} is there to serve this")
