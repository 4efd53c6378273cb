"""Requests that wait for a worker, in the order in which they will go."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from dynamo.router.router import Placement


class Ticket(Struct, kw_only=True, eq=False):
    """A request that wants a place."""

    request_id: str
    chain: Sequence[int]
    prompt_tokens: int
    priority: int = 0
    pinned: int | None = None
    dp_rank: int | None = None
    avoid: Collection[int] = ()
    arrived: float = 0.0
    order: tuple[float, int] = (0.0, 0)
    placed: asyncio.Future[Placement] | None = None


class Queue:
    """`fcfs`: higher priority first, then who came first. `wspt`: priority over tokens to compute, shortest first."""

    def __init__(self, policy: str) -> None:
        self._wspt = policy == "wspt"
        self._tickets: list[Ticket] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

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
