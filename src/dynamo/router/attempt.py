"""One attempt to send a request: find an instance that can be reached, and send the request there."""

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


class PlaceRequest(Protocol):
    """`Router.place` with its other arguments bound."""

    async def __call__(
        self, request: Any, *, request_id: str = "", pinned: int | None = None, avoid: Collection[int] = ()
    ) -> Placement: ...


async def reach(
    place: PlaceRequest,
    instances: InstanceSet,
    request: Any,
    begin: Callable[[Placement], Awaitable[None]],
    *,
    request_id: str = "",
    pinned: int | None = None,
    excluded: set[int] | None = None,
) -> Placement:
    """Place a request where `begin` succeeds. Each instance where it fails is added to `excluded`."""
    excluded = set() if excluded is None else excluded
    last: DynamoException | None = None
    while True:
        try:
            placement = await place(request, request_id=request_id, pinned=pinned, avoid=excluded)
        except Unavailable:
            if last is None:
                raise
            raise instances.none_reachable(last) from last
        try:
            await begin(placement)
            return placement
        except DynamoException as error:
            if pinned is not None:
                raise
            instances.mark_unreachable(placement.instance_id, error)
            excluded.add(placement.instance_id)
            last = error


def send(placement: Placement, request: Any, context: Context, sink: Sink) -> None:
    """Send on the placement's open channel; if that fails, the booking is released."""
    tokens = isinstance(request, PreprocessedRequest)
    if tokens and placement.dp_rank is not None:
        # A copy: the choices of one client request share theirs.
        routing = structs.replace(request.routing or Routing(), dp_rank=placement.dp_rank)
        request = structs.replace(request, routing=routing)
    try:
        placement.channel.send(request, context, sink, item_type=EngineOutput if tokens else Any, columnar=tokens)
    except BaseException:
        placement.release()
        raise
