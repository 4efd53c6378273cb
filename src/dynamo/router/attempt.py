"""One try to send a request to one instance, and the search for an instance that can be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from msgspec import structs

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing
from dynamo.protocols.errors import DynamoException, Unavailable
from dynamo.router.placement import Placement
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.stream import Sink


class Place(Protocol):
    """Chooses an instance for a request and books it there: `Router.place`, with its other arguments bound."""

    async def __call__(
        self, request: Any, *, request_id: str = "", pinned: int | None = None, avoid: Collection[int] = ()
    ) -> Placement: ...


class Attempt:
    """One try at one instance: booked, connected, sent. Its placement is released exactly once."""

    __slots__ = ("placement", "silent")

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.silent = True
        """The worker has produced nothing yet."""

    async def connect(self) -> None:
        await self.placement.connect()

    def send(self, request: Any, context: Context, sink: Sink) -> None:
        """Send on the open channel; raises CannotConnect when the connection is gone."""
        placement = self.placement
        tokens = isinstance(request, PreprocessedRequest)
        if tokens and placement.dp_rank is not None:
            request = _on_rank(request, placement.dp_rank)
        try:
            placement.channel.send(request, context, sink, item_type=EngineOutput if tokens else Any, columnar=tokens)
        except BaseException:
            placement.release()
            raise


async def reach(
    place: Place,
    instances: InstanceSet,
    request: Any,
    begin: Callable[[Attempt], Awaitable[None]],
    *,
    request_id: str = "",
    pinned: int | None = None,
    excluded: set[int] | None = None,
) -> Attempt:
    """Place a request where `begin` succeeds. Instances that cannot be reached are `excluded` and passed over."""
    passed_over = excluded if excluded is not None else set()
    unreachable: DynamoException | None = None
    while True:
        try:
            attempt = Attempt(await place(request, request_id=request_id, pinned=pinned, avoid=passed_over))
        except Unavailable:
            if unreachable is None:
                raise
            raise instances.nobody(unreachable) from unreachable
        try:
            await begin(attempt)
            return attempt
        except DynamoException as error:
            if pinned is not None:
                raise
            instances.unreachable(attempt.placement.instance_id, error)
            passed_over.add(attempt.placement.instance_id)
            unreachable = error


def _on_rank(request: PreprocessedRequest, dp_rank: int) -> PreprocessedRequest:
    """The request for one rank of its worker. A copy: the choices of one client request share theirs."""
    return structs.replace(request, routing=structs.replace(request.routing or Routing(), dp_rank=dp_rank))
