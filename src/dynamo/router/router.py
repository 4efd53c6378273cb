"""The router seam: a request asks for a place and gets it booked."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any, Protocol

from msgspec import Struct, structs

from dynamo.protocols.engine import PreprocessedRequest, Routing
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.kv import WorkerRank
from dynamo.router.decision import Decision
from dynamo.router.stats import RouterStats
from dynamo.router.thresholds import Thresholds
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import Channel

REMEMBERED = 256
"""Decisions kept for whoever asks."""


class WorkerLoad(Struct, frozen=True):
    """What is known of the load of one rank of a worker."""

    worker: WorkerRank
    decode_blocks: int
    prefill_tokens: int


class Placement:
    """A booked choice. Whoever holds it says when the first token came and, in whatever way it ended, `release`."""

    __slots__ = ("channel", "decision", "dp_rank", "instance_id", "released")

    def __init__(self, instance_id: int, channel: Channel, decision: Decision, dp_rank: int | None = None) -> None:
        self.instance_id = instance_id
        self.channel = channel
        self.decision = decision
        self.dp_rank = dp_rank
        """The rank the worker must use; None leaves it to the worker."""
        self.released = False

    async def connect(self) -> None:
        """Reach the worker; a place that cannot be reached is given back."""
        if self.channel.ready:
            return
        try:
            await self.channel.open()
        except BaseException:
            self.release()
            raise

    def first_token(self) -> None:
        """The prompt is computed."""

    def release(self) -> None:
        """Once is enough, more does no harm."""
        if not self.released:
            self.released = True
            self._freed()

    def _freed(self) -> None: ...


class Router(Protocol):
    """The way from the requests of one model to its instances."""

    instances: InstanceSet
    decisions: deque[Decision]
    stats: RouterStats
    thresholds: Thresholds
    """May be set at any time."""

    def start(self) -> None:
        """Begin to follow what the workers tell."""

    async def close(self) -> None:
        """Stop following. Placements that are still held stay good."""

    async def open(
        self, request: Any, *, request_id: str = "", pinned: int | None = None, avoid: Collection[int] = ()
    ) -> Placement:
        """A place for this request on a connected instance; a pinned one is taken if it is there at all.

        Raises Unavailable when nobody is there, ResourceExhausted when all are busy beyond the thresholds.
        """

    def loads(self) -> list[WorkerLoad]:
        """Of the workers that are there; none where nobody keeps count of it."""

    @property
    def waiting_tokens(self) -> int:
        """Tokens in the prompts of the requests that wait."""

    @property
    def waiting(self) -> int:
        """Requests that wait here for a place."""

    @property
    def active(self) -> int:
        """Requests placed that have not ended, those included that other routers told of."""

    @property
    def known_blocks(self) -> int:
        """KV blocks believed to be cached, counted once per worker; 0 where nobody looks at them."""


def pinned_channel(instances: InstanceSet, instance_id: int) -> Channel:
    """The way to the instance a client has named."""
    if instance_id not in instances:
        message = f"there is no instance {instance_id} of {instances.name} (any more)."
        raise InvalidRequest(message, "nvext.backend_instance_id", "instance_not_found")
    return instances.channel(instance_id)


def on_rank(request: PreprocessedRequest, dp_rank: int) -> PreprocessedRequest:
    """The request for one rank of its worker; choices share a request, so it is not written into."""
    return structs.replace(request, routing=structs.replace(request.routing or Routing(), dp_rank=dp_rank))
