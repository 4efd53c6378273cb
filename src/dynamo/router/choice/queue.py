"""Requests that wait for a worker, in the order in which they will be placed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.engine import Session, Tenant
from dynamo.protocols.errors import DynamoException
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.elsewhere import ServiceElsewhere, TenantService
from dynamo.router.choice.service import ServiceLedger, prompt_cost
from dynamo.router.choice.turns import Turns, tenant_key

EVERYBODY = Tenant("")
"""The tenant of requests that have none."""


class Releasable(Protocol):
    def release(self) -> None: ...


P = TypeVar("P", bound=Releasable)
"""A placement."""


class RequestToPlace(Struct, kw_only=True, eq=False):
    """A request, with what the choice of a worker depends on."""

    request: Any
    request_id: str
    hashes: Sequence[int] = ()
    """The sequence hashes of its prompt; empty if it is not tokenized."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Cached at the worker with the longest prefix when it began to wait; 0 for one that does not wait."""
    group: object = None
    priority: int = 0
    strict_priority: int = 0
    expected_output_tokens: int = 0
    tenant: Tenant = EVERYBODY
    pinned: int | None = None
    dp_rank: int | None = None
    avoid: Collection[int] = ()
    cost: CostConfig | None = None
    """Used instead of the router's own."""
    copies: bool = True
    """Whether its prefix may be computed ahead on idle workers."""
    learn: bool = True
    """Whether, without KV events, its prompt counts as cached at the chosen worker from now on."""
    session: Session | None = None
    held: bool = False
    """It may go to the worker of its session only."""
    arrived: float = 0.0

    @property
    def restricted(self) -> bool:
        """Whether only some workers may take it."""
        return self.pinned is not None or self.dp_rank is not None or self.held or bool(self.avoid)


class _Waiting(Struct, Generic[P], eq=False):
    request: RequestToPlace
    order: tuple[float, ...]
    cost: float
    """What its prompt costs; its output is charged while it comes."""
    placed: asyncio.Future[P]

    @property
    def tenant(self) -> Tenant:
        return self.request.tenant


class Queue(Generic[P]):
    """Tenants take turns by the tokens they were served; within a tenant the strict priority decides, then
    the policy. `fcfs`: higher priority first, then first come. `wspt`: priority per token to compute, highest first.

    `place(request, awaited)` places a request on a worker that is not `awaited`; it returns None if the request must
    wait, and raises if it can never be placed. `candidates` are the workers a request may go to.
    """

    def __init__(
        self,
        policy: str,
        place: Callable[[RequestToPlace, Collection[WorkerRank]], P | None],
        candidates: Callable[[RequestToPlace], Collection[WorkerRank]],
    ) -> None:
        self._wspt = policy == "wspt"
        self._place = place
        self._candidates = candidates
        self.waiting: Turns[_Waiting[P]] = Turns()
        self.ledger = ServiceLedger(self.waiting)
        self.elsewhere = ServiceElsewhere(self.waiting)
        self._restricted: set[_Waiting[P]] = set()
        """Those of `waiting` that may use only some workers."""
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[RequestToPlace]:
        return iter([waiting.request for waiting in self.waiting])

    @property
    def is_busy(self) -> bool:
        """Whether more service is to come that tenants are charged for."""
        return self.waiting.count > 0 or self.ledger.is_open

    async def wait(self, request: RequestToPlace, uncached_tokens: int) -> P:
        """Return when the request's turn has come and it is placed."""
        placed: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        cost = max(1, uncached_tokens + request.expected_output_tokens)
        request.cached_tokens = max(0, request.prompt_tokens - uncached_tokens)
        fair_cost = prompt_cost(uncached_tokens, request.cached_tokens)
        waiting = _Waiting(request, self._order(request, cost), fair_cost, placed)
        self.waiting.add(waiting)
        if request.restricted:
            self._restricted.add(waiting)
        # A worker may be free for this request although others wait: they may not be allowed on it.
        self.dispatch()
        try:
            return await placed
        except asyncio.CancelledError:
            if placed.done() and not placed.cancelled() and not placed.exception():
                placed.result().release()
            raise
        finally:
            self._remove(waiting)

    def takes_turns(self, tenant: Tenant) -> bool:
        """Whether a request of this tenant must wait: others do here, or one that had less does at another frontend."""
        return self.waiting.count > 0 or self.waiting.is_ahead(tenant_key(tenant))

    def service(self) -> list[TenantService]:
        """What the routers of other frontends should know of this one."""
        self.ledger.settle()
        restricted = Counter(tenant_key(one.tenant) for one in self._restricted)
        waiting = self.waiting.waiting_keys()
        return self.elsewhere.report([key for key, count in restricted.items() if count == waiting.get(key)])

    def passed(self, request: RequestToPlace, cached_tokens: int) -> None:
        """The request was placed without waiting."""
        if request.tenant.name:
            request.cached_tokens = cached_tokens
            cost = prompt_cost(request.prompt_tokens - cached_tokens, cached_tokens)
            self.waiting.passed(request.tenant, cost)

    def dispatch(self) -> None:
        """Dispatch in order; skip a worker that an earlier request is waiting for."""
        if not self.waiting:
            return
        self.elsewhere.expire()
        self.ledger.settle()
        awaited: set[WorkerRank] = set()
        tried: set[int] = set()
        for waiting in self.waiting:
            tried.add(id(waiting))
            if not self._try(waiting, awaited) and not waiting.request.restricted:
                break
        else:
            return
        # That request may use any worker and must wait, so all others that may use any must wait too. Try the rest.
        for waiting in sorted(self._restricted, key=lambda one: one.order):
            if id(waiting) not in tried:
                self._try(waiting, awaited)

    def _try(self, waiting: _Waiting[P], awaited: set[WorkerRank]) -> bool:
        """Place the request, or refuse it; False if it must wait."""
        request = waiting.request
        if waiting.placed.done():
            return True
        if self.waiting.is_ahead(tenant_key(request.tenant)):
            return False
        try:
            placement = self._place(request, awaited)
        except DynamoException as error:
            self._reject(waiting, error)
            return True
        if placement:
            self.waiting.served(waiting)
            self._restricted.discard(waiting)
            waiting.placed.set_result(placement)
            return True
        if request.restricted:
            self._restricted.add(waiting)
            awaited.update(self._candidates(request))
        return False

    def reject_all(self, error: Callable[[], DynamoException]) -> None:
        for waiting in tuple(self.waiting):
            self._reject(waiting, error())

    def make_room(self, tenant: Tenant, error: DynamoException) -> bool:
        """Refuse, with `error`, the last request of a tenant that has more waiting for its weight than `tenant`."""
        excess = self.waiting.excess(tenant)
        if excess:
            self._reject(excess, error)
        return excess is not None

    def _reject(self, waiting: _Waiting[P], error: DynamoException) -> None:
        self._remove(waiting)
        if not waiting.placed.done():
            waiting.placed.set_exception(error)

    def _remove(self, waiting: _Waiting[P]) -> None:
        self.waiting.remove(waiting)
        self._restricted.discard(waiting)

    def _order(self, request: RequestToPlace, cost: int) -> tuple[float, ...]:
        self._arrivals += 1
        rank = float(request.priority)
        if self._wspt:
            rank = (1 + max(0, request.priority)) / cost
        return -request.strict_priority, -rank, self._arrivals
