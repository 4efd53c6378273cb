"""GET /v1/streams/{name}: goes on with a stream whose frontend is gone, without its request."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from dynamo.api.host import Host
from dynamo.api.route import STORED_ERRORS, AnyRoute, Api, HttpCall, HttpRoute
from dynamo.api.stream_names import continued, name_in_path
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.errors import NotFound
from dynamo.serving.resumable import StreamName, find_stream


def streams_api(apis: Sequence[Api]) -> Api:
    """The route by which the streams of the other APIs are continued."""
    routes: dict[str, AnyRoute] = {
        route.path: route for api in apis for route in api.routes if route.streams and route.body
    }
    decoders = {path: BodyDecoder(route.body) for path, route in routes.items() if route.body}

    async def continue_stream(host: Host, call: HttpCall[None]) -> web.StreamResponse:
        want = name_in_path(call.request)
        name = StreamName(want.name, call.owner)
        for model in host.models.versions():
            if found := await find_stream(name, model.router.instances, want.instances):
                begun = found.request
                route = routes[begun.path]
                body = decoders[begun.path].decode(begun.body, [])
                again = HttpCall(call.request, call.record, body, begun.body)
                again.stream = continued(name, found, want.after)
                return await route.handler(host, again)
        raise NotFound(
            f"No worker keeps a stream '{want.name[:128]}'; send its request again, with the same X-Dynamo-Stream."
        )

    return Api(
        (
            HttpRoute(
                "GET", "/v1/streams/{name}", continue_stream, endpoint="streams", limited=True, streams=True,
                summary="Go on with a stream that was named with X-Dynamo-Stream (after Last-Event-ID)",
                statuses=STORED_ERRORS,
            ),
        )
    )  # fmt: skip
