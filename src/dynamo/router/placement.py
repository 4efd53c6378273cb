"""The router seam: a router chooses an instance for a request and books the request there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from dynamo.kv.index.prefixes import PrefixScan
from dynamo.kv.messages import Tier, TierReport, WorkerRank
from dynamo.protocols.engine import PreprocessedRequest, Routing, Session, SessionName, Tenant
from dynamo.protocols.errors import InvalidRequest
from dynamo.router.choice.queue import Queue
from dynamo.router.config import RequestBackoff
from dynamo.router.decision import Decision
from dynamo.router.sessions.affinity import SessionTurn
from dynamo.router.stats import RouterStats
from dynamo.router.stream_watch import StreamWatch
from dynamo.router.thresholds import Thresholds
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import Channel

END_TURN = "end_turn"
"""What an answer ends with that calls no tool: it is the user's turn."""
DECISIONS_KEPT = 256
"""The latest decisions of a router, for inspection."""


class WorkerLoad(Struct, frozen=True):
    """The known load of one rank of a worker."""

    worker: WorkerRank
    decode_blocks: int
    prefill_tokens: int


class TierStatus(Struct, frozen=True):
    """What a router knows of one slower tier of a rank."""

    tier: Tier
    blocks: int
    """Held there, as KV events say."""
    report: TierReport | None = None
    """What the worker says of it; None: nothing."""


class RankStatus(Struct, frozen=True):
    """What a router knows of one rank, for people; None is not known."""

    worker: WorkerRank
    requests: int
    """Placed there and not ended."""
    active_blocks: int | None = None
    prefill_tokens: int | None = None
    cached_blocks: int | None = None
    tiers: Sequence[TierStatus] = ()
    acceptance: float | None = None
    """The share of guessed tokens that were right."""


class Account(Protocol):
    """Where placements are counted. Each method is called at most once per placement."""

    def connected(self, placement: Placement) -> None:
        """The instance of the placement was reached."""

    def prompt_computed(self, placement: Placement) -> None: ...

    def released(self, placement: Placement) -> None: ...


class Placement:
    """A request reserved at one instance, from the choice to the release.

    The holder calls `first_token` when the prompt is computed and `release` however the request ends.
    """

    __slots__ = (
        "_account",
        "cached_tokens",
        "channel",
        "computed",
        "decision",
        "dp_rank",
        "instance_id",
        "output_tokens",
        "released",
        "session",
        "turn",
    )

    def __init__(
        self,
        account: Account,
        instance_id: int,
        channel: Channel,
        decision: Decision | None = None,
        dp_rank: int | None = None,
    ) -> None:
        self._account = account
        self.instance_id = instance_id
        self.channel = channel
        self.decision = decision
        """None for what the router itself sends."""
        self.dp_rank = dp_rank
        """The rank the worker must use; None leaves it to the worker."""
        self.output_tokens = 0
        """So far."""
        self.cached_tokens: int | None = None
        """How much of its prompt was cached, as the worker said at the end."""
        self.turn: SessionTurn | None = None
        """Its part in a session that keeps to a worker."""
        self.session: SessionName | None = None
        """What the worker calls its session, where it is told of pauses."""
        self.computed = False
        self.released = False

    async def connect(self) -> None:
        """Reach the instance; if that fails, the reservation is released."""
        if not self.channel.ready:
            try:
                await self.channel.open()
            except BaseException:
                self.release()
                raise
        self._account.connected(self)

    def routed(self, request: Any) -> Any:
        """The request as the instance must get it."""
        if (self.dp_rank is None and self.session is None) or not isinstance(request, PreprocessedRequest):
            return request
        # A copy: the choices of one client request share theirs.
        routing = structs.replace(request.routing or Routing())
        if self.dp_rank is not None:
            routing.dp_rank = self.dp_rank
        routing.session = self.session
        return structs.replace(request, routing=routing)

    def first_token(self) -> None:
        """The prompt is computed. Further calls do nothing."""
        if not self.computed and not self.released:
            self.computed = True
            if self.turn:
                self.turn.served()
            self._account.prompt_computed(self)

    def release(self) -> None:
        """Take the request off the books. Further calls do nothing."""
        if not self.released:
            self.released = True
            if self.turn:
                self.turn.ended(self.output_tokens)
            self._account.released(self)


class Router(Protocol):
    """Places the requests of one model on its instances."""

    instances: InstanceSet
    decisions: deque[Decision]
    stats: RouterStats
    thresholds: Thresholds
    """May be set at any time."""
    watch: StreamWatch
    """Finds the streams of this router that stall."""
    backoff: Callable[[], RequestBackoff]
    """How long a request waits for an instance."""
    queue: Queue[Any]
    """What waits for a worker, and what each tenant was served."""

    def start(self) -> None:
        """Begin to follow what the workers publish."""

    async def close(self) -> None:
        """Stop following. Placements that are still held stay valid."""

    async def place(
        self,
        request: Any,
        *,
        request_id: str = "",
        group: object = None,
        pinned: int | None = None,
        avoid: Collection[int] = (),
        tenant: Tenant | None = None,
        session: Session | None = None,
    ) -> Placement:
        """Choose an instance and book the request there; a `pinned` instance is taken if it is there at all.

        Requests of one `group` are the choices of one client request; where requests wait, tenants take turns; a
        `session` keeps to its worker, where that is configured. Raises
        Unavailable when there is no instance to choose, ResourceExhausted when all are busy beyond the thresholds.
        """

    def session_paused(self, session: Session, kind: str) -> None:
        """A turn of the session has ended: by a call of the tool `kind`, or with END_TURN."""

    def loads(self) -> list[WorkerLoad]:
        """The load of each rank that can be reached; empty where load is not tracked."""

    def status(self) -> list[RankStatus]:
        """Every rank that can be reached, with all that is known of it."""

    def prefixes(self, most: int) -> PrefixScan:
        """The `most` largest cached prefixes; none where caches are not looked at."""

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the requests in the router's queue."""

    @property
    def waiting(self) -> int:
        """Requests in the router's queue."""

    @property
    def active(self) -> int:
        """Requests placed and not yet ended, including those other routers have announced."""

    @property
    def known_blocks(self) -> int:
        """KV blocks believed to be cached, counted once per worker; 0 where caches are not looked at."""


class PlaceRequest(Protocol):
    """`Router.place` with its other arguments bound."""

    async def __call__(
        self, request: Any, *, request_id: str = "", pinned: int | None = None, avoid: Collection[int] = ()
    ) -> Placement: ...


def pinned_instance(request: Any) -> int | None:
    """The instance that the client has named for its request."""
    if isinstance(request, PreprocessedRequest):
        return request.routing.backend_instance_id if request.routing else None
    if isinstance(request, dict):
        nvext = request.get("nvext")
        return nvext.get("backend_instance_id") if isinstance(nvext, dict) else None
    return None


def check_pinned(instances: InstanceSet, instance_id: int) -> None:
    if instance_id not in instances:
        message = f"there is no instance {instance_id} of {instances.name} (any more)."
        raise InvalidRequest(message, "nvext.backend_instance_id", "instance_not_found")
