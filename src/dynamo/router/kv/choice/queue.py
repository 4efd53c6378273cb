"""Requests that wait for a worker, in the order in which they will go."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from dynamo.protocols.errors import DynamoException
from dynamo.protocols.kv import WorkerRank
from dynamo.router.kv.choice.cost import CostConfig
from dynamo.router.router import Placement


class Ticket(Struct, kw_only=True, eq=False):
    """A request that wants a place."""

    request: Any
    request_id: str
    chain: Sequence[int]
    prompt_tokens: int
    tokens: Sequence[int] | None = None
    priority: int = 0
    pinned: int | None = None
    dp_rank: int | None = None
    avoid: Collection[int] = ()
    cost: CostConfig | None = None
    """What this request asks for instead of the router's own."""
    copies: bool = True
    """Whether its prefix may be computed ahead elsewhere."""
    learn: bool = True
    """Whether, where no events tell, it is taken to be cached from now on."""
    arrived: float = 0.0
    order: tuple[float, int] = (0.0, 0)
    placed: asyncio.Future[Placement] | None = None

    @property
    def restricted(self) -> bool:
        """Whether it may go to some places only."""
        return self.pinned is not None or self.dp_rank is not None or bool(self.avoid)


class Queue:
    """`fcfs`: higher priority first, then who came first. `wspt`: priority over tokens to compute, shortest first.

    `place` finds and books a place for a ticket on none of the workers given, None when there is none yet; it raises
    when there will be none. `candidates` are the workers a ticket may go to.
    """

    def __init__(
        self,
        policy: str,
        place: Callable[[Ticket, Collection[WorkerRank]], Placement | None],
        candidates: Callable[[Ticket], Iterable[WorkerRank]],
    ) -> None:
        self._wspt = policy == "wspt"
        self._place = place
        self._candidates = candidates
        self._tickets: list[Ticket] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

    async def wait(self, ticket: Ticket, uncached_tokens: int) -> Placement:
        """A place, when the ticket's turn has come."""
        ticket.placed = asyncio.get_running_loop().create_future()
        self.add(ticket, uncached_tokens)
        # A place may be free for this one although others wait: they may not be allowed there.
        self.eased()
        try:
            return await ticket.placed
        except asyncio.CancelledError:
            if ticket.placed.done() and not ticket.placed.cancelled() and not ticket.placed.exception():
                ticket.placed.result().release()
            raise
        finally:
            self.remove(ticket)

    def eased(self) -> None:
        """Something ended or came: whoever can go now, goes, but to no worker that one before it waits for."""
        if not self._tickets:
            return
        blocked = False
        awaited: set[WorkerRank] = set()
        for ticket in self:
            if blocked and not ticket.restricted:
                continue
            assert ticket.placed
            if ticket.placed.done():
                continue
            try:
                placement = self._place(ticket, awaited)
            except DynamoException as error:
                self.refuse(ticket, error)
                continue
            if placement:
                self.remove(ticket)
                ticket.placed.set_result(placement)
            elif ticket.restricted:
                awaited.update(self._candidates(ticket))
            else:
                blocked = True

    def refuse(self, ticket: Ticket, error: DynamoException) -> None:
        self.remove(ticket)
        if ticket.placed and not ticket.placed.done():
            ticket.placed.set_exception(error)

    def add(self, ticket: Ticket, uncached_tokens: int) -> None:
        self._arrivals += 1
        rank = float(ticket.priority)
        if self._wspt:
            rank = (1 + max(0, ticket.priority)) / max(1, uncached_tokens)
        ticket.order = (-rank, self._arrivals)
        insort(self._tickets, ticket, key=lambda one: one.order)

    def remove(self, ticket: Ticket) -> None:
        if ticket in self._tickets:
            self._tickets.remove(ticket)
