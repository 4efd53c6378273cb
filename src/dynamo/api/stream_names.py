"""What a client says of a stream that any frontend is to continue: its name, and what it has of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from dynamo.api.headers import Headers
from dynamo.api.host import Host
from dynamo.api.route import HttpCall
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.runtime import Context
from dynamo.serving.resumable import FoundStream, NamedRequest, ResumableStream, StreamName, find_stream

NAME = "X-Dynamo-Stream"
LAST_EVENT = "Last-Event-ID"
RETRIES = "X-Stainless-Retry-Count"
"""Official clients count in it how often they have sent the same request before."""
_NAME = re.compile(r"[A-Za-z0-9_-]{16,128}")
_EVENT = re.compile(r"([A-Za-z0-9_-]{16,128}):([0-9]{1,9}(?:\.[0-9]{1,9})*)@([0-9a-f]{1,16})")


class Wanted(Struct, frozen=True):
    """A stream as a request names it."""

    name: str
    after: tuple[int, ...] = ()
    """How many events of each choice the client has."""
    instances: Sequence[int] = ()
    """Where it was read last."""
    continues: bool = False
    """The client has asked for it before."""


def wanted(headers: Headers) -> Wanted | None:
    """The stream that the headers name; raises InvalidRequest."""
    event = headers.get(LAST_EVENT)
    name = headers.get(NAME)
    if name is not None:
        name = checked_name(name)
    if event is None:
        return None if name is None else Wanted(name, continues=headers.get(RETRIES, "0") != "0")
    if (found := _EVENT.fullmatch(event)) is None:
        why = f"{event[:64]!r} is not the id of an event of this server"
        raise InvalidRequest.bad_value(LAST_EVENT, why)
    if name is not None and found[1] != name:
        raise InvalidRequest.bad_value(LAST_EVENT, f"it is of the stream {found[1]!r}, not of {name!r}")
    return Wanted(found[1], tuple(map(int, found[2].split("."))), (int(found[3], 16),), continues=True)


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        why = "must be 16 to 128 letters, digits, - and _ that nobody can guess, such as a new UUID"
        raise InvalidRequest.bad_value(NAME, why)
    return name


async def open_stream(
    host: Host, call: HttpCall[Any], request: ChatRequest | CompletionRequest, conversation: str | None = None
) -> tuple[Context, ResumableStream | None]:
    """The context of a request, and its stream if the client has named one: the one that a worker keeps of that name,
    or a new one. For `conversation` see `HttpCall.context`."""
    context = call.context(request, conversation)
    stream = call.stream
    if stream is None and (want := wanted(call.request.headers)) is not None:
        name = StreamName(want.name, call.owner)
        found = None
        if want.continues:
            model = host.models.get(request.model)
            for version in (model, *model.peers()):
                if found := await find_stream(name, version.router.instances, want.instances):
                    break
        if found is not None:
            _check_same(found.request, call)
            stream = continued(name, found, want.after)
        else:
            asked = NamedRequest(call.request.path, bytes(call.raw_body), int(time.time()), name.request_id)
            stream = ResumableStream(name, asked, want.after, continues=want.continues)
    return (context, None) if stream is None else (context.renamed(stream.request.request_id), stream)


def continued(name: StreamName, found: FoundStream, after: tuple[int, ...]) -> ResumableStream:
    return ResumableStream(name, found.request, after, continues=True, found={0: found.kept_at})


def _check_same(begun: NamedRequest, call: HttpCall[Any]) -> None:
    """A name stands for one request."""
    body = bytes(call.raw_body)
    same = begun.body == body or msgspec.json.decode(begun.body) == msgspec.json.decode(body)
    if begun.path != call.request.path or not same:
        raise InvalidRequest.bad_value(NAME, "a stream of this name was begun by another request")


def name_in_path(request: web.Request) -> Wanted:
    """The stream in the address of the request, and what its headers say of it."""
    name = request.match_info["name"]
    if not _NAME.fullmatch(name):
        return Wanted(name)
    want = wanted(request.headers)
    if want is None:
        return Wanted(name)
    if want.name != name:
        raise InvalidRequest.bad_value(LAST_EVENT, f"it is of the stream {want.name!r}, not of {name!r}")
    return want
