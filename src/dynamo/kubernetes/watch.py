"""Follows the objects of a resource: read once, then watched, through outages and versions that are no longer kept."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Generic, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from dynamo.kubernetes.api import KubernetesApi, decoded, selectors
from dynamo.kubernetes.errors import ApiOutage, ApiRefusal, Gone, KubernetesError
from dynamo.kubernetes.messages import ApiCall, KubernetesStatus
from dynamo.kubernetes.resources import Resource
from dynamo.process.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_DELAY, LAST_DELAY = 0.1, 5.0
_WATCH_SECONDS = 240
_SILENCE = 90.0
"""Bookmarks come about every minute: a connection without a byte for longer may be dead, and is opened again."""
_LONGEST_EVENT = 16 << 20

T = TypeVar("T")


class WatchedMetadata(Struct, frozen=True, rename="camel"):
    """What is read of every object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Outline(Struct, frozen=True):
    metadata: WatchedMetadata = WatchedMetadata()


class _ObjectLine(Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Unreadable(Struct, frozen=True):
    """An object that is there and is not of the type that was asked for."""

    why: str


class SeenObject(Struct, Generic[T], frozen=True):
    """One object as it is now."""

    metadata: WatchedMetadata
    object: T | Unreadable


class Replaced(Struct, Generic[T], frozen=True):
    """All objects there are: what is not among them is gone."""

    objects: list[SeenObject[T]]


class Changed(Struct, Generic[T], frozen=True):
    """An object appeared, or is another than before."""

    seen: SeenObject[T]


class ObjectRemoved(Struct, frozen=True):
    """An object is gone."""

    metadata: WatchedMetadata


_LINE = msgspec.json.Decoder(_ObjectLine)
_OUTLINE = msgspec.json.Decoder(_Outline)


class ResourceWatch(Generic[T]):
    """One watch. During an outage it reports nothing; after it only what is different, or everything anew.

    `version` is how far it has come; `reads` and `resumes` count what it took.
    """

    def __init__(
        self,
        api: KubernetesApi,
        resource: Resource,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> None:
        self._api = api
        self.resource = resource
        self._decoder = msgspec.json.Decoder(kind)
        self._namespace = namespace
        self._labels, self._fields = labels, fields
        self.version = ""
        self._backoff = Backoff(FIRST_DELAY, LAST_DELAY, jitter=random.random)
        self._trouble = ""
        self.reads = 0
        self.resumes = 0

    @property
    def is_down(self) -> bool:
        """The server could not be followed when it was tried last."""
        return bool(self._trouble)

    async def changes(self) -> AsyncGenerator[Replaced[T] | Changed[T] | ObjectRemoved, None]:
        """First `Replaced`, then what changes, until the generator is closed."""
        while True:
            try:
                if not self.version:
                    yield await self._read()
                async with aclosing(self._lines()) as lines:
                    async for line in lines:
                        if (change := self._change(line)) is not None:
                            yield change
                self.resumes += 1  # the server ends each watch after a while
            except Gone as error:
                log.debug("reading %s again: %s", self.resource, error)
                self.version = ""
            except KubernetesError as error:
                self._note(error)
            await asyncio.sleep(self._backoff.pause())

    async def _read(self) -> Replaced[T]:
        listing = await self._api.list(
            self.resource, namespace=self._namespace, labels=self._labels, fields=self._fields
        )
        self.reads += 1
        self.version = listing.version
        self._works()
        return Replaced([self._seen(raw) for raw in listing.items])

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of a watch from the version that was seen last."""
        params = {
            "watch": "true", "resourceVersion": self.version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(_WATCH_SECONDS * random.uniform(0.75, 1.25))),
            **selectors(self._labels, self._fields),
        }  # fmt: skip
        namespace = self._api.namespace if self._namespace is None else self._namespace
        call = ApiCall(verb="watch", method="GET", resource=self.resource, namespace=namespace, params=params)
        async with self._api.stream(call, _SILENCE) as content:
            self._works()
            async with aclosing(_split(content)) as lines:
                async for line in lines:
                    yield line

    def _change(self, text: bytes) -> Changed[T] | ObjectRemoved | None:
        try:
            line = _LINE.decode(text)
            if line.type == "ERROR":
                status = msgspec.json.decode(line.object, type=KubernetesStatus)
                raise (Gone if status.code == 410 else ApiOutage)(status.message or status.reason)
            metadata = _OUTLINE.decode(line.object).metadata
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ApiOutage(f"{self._api.access.server}: an event of {self.resource} is malformed: {error}") from error
        if metadata.resource_version:
            self.version = metadata.resource_version
        match line.type:
            case "ADDED" | "MODIFIED":
                return Changed(self._seen(line.object))
            case "DELETED":
                return ObjectRemoved(metadata)
        return None  # a bookmark says only which version was reached

    def _seen(self, raw: msgspec.Raw) -> SeenObject[T]:
        metadata = decoded(raw, _Outline, f"{self._api.access.server}: an object of {self.resource}").metadata
        try:
            return SeenObject(metadata, self._decoder.decode(raw))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return SeenObject(metadata, Unreadable(str(error)))

    def _works(self) -> None:
        if self._trouble:
            log.info("%s can be followed again", self.resource)
        self._trouble = ""
        self._backoff.reset()

    def _note(self, error: KubernetesError) -> None:
        kind = "refusal" if isinstance(error, ApiRefusal) else "outage"
        if kind != self._trouble:
            log.warning("cannot follow %s: %s; trying again, what is known stays", self.resource, error)
        self._trouble = kind


async def _split(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length up to a limit, which is beyond what the API server stores."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line:
                    yield bytes(line)
        if len(rest) > _LONGEST_EVENT:
            raise ApiOutage(f"an event has more than {_LONGEST_EVENT >> 20} MB")
