"""Watches a prefix of etcd through broken connections, compactions and stores that come back empty.

There is one way to recover from any break: read the prefix again, report the differences, and watch from the revision
that was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator

import msgspec

from dynamo.process.backoff import Backoff
from dynamo.runtime.discovery.base import Change, Delete, DiscoveryError, Put, Synced
from dynamo.runtime.discovery.etcd.config import RETRY_SECONDS, EtcdConfig
from dynamo.runtime.discovery.etcd.gateway import Gateway, Lines, Outage, Refused
from dynamo.runtime.discovery.etcd.messages import (
    EtcdHeader,
    Event,
    KeyValue,
    RangeAnswer,
    WatchAnswer,
    WatchLine,
    range_end,
)

log = logging.getLogger("dynamo.runtime.discovery.etcd")

SECOND_LOOK = 1.0  # seconds for an event under way to arrive before a silent watch counts as dead


class WatchState:
    """The state of a watch, without I/O: what it has reported and what it knows of the store.

    Keys that the store may have lost, rather than an owner deleted, stay reported for `grace` seconds: the time their
    owners need to notice and put them again.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._reported: dict[bytes, bytes] = {}
        self._missing: dict[bytes, float] = {}
        self._standing: dict[bytes, int] = {}
        self._cluster = ""
        self.revision = 0

    @property
    def count(self) -> int:
        return len(self._standing)

    @property
    def next_deadline(self) -> float | None:
        return min(self._missing.values(), default=None)

    def read(self, answer: RangeAnswer, now: float, cut_off: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """Compare with a fresh reading; `cut_off`: owners may have lost their leases meanwhile."""
        lost = cut_off or not self._continues(answer)
        self._standing = {kv.key: kv.mod_revision for kv in answer.kvs}
        self._cluster, self.revision = answer.header.cluster_id, answer.header.revision
        for key in [key for key in self._reported if key not in self._standing]:
            if lost or key in self._missing:
                self._missing[key] = now + self._grace
            else:
                yield from self._delete(key)
        for kv in answer.kvs:
            yield from self._put(kv)

    def apply(self, event: Event, now: float, recently_down: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """Apply an event of the stream; `recently_down`: a deletion may be a lease that ended in the outage."""
        self.revision = max(self.revision, event.kv.mod_revision)
        if event.type == "DELETE":
            self._standing.pop(event.kv.key, None)
            if not recently_down:
                yield from self._delete(event.kv.key)
            elif event.kv.key in self._reported:
                self._missing[event.kv.key] = now + self._grace
        else:
            self._standing[event.kv.key] = event.kv.mod_revision
            yield from self._put(event.kv)

    def overdue(self, now: float) -> Iterator[tuple[bytes, bytes | None]]:
        for key in [key for key, deadline in self._missing.items() if deadline <= now]:
            yield from self._delete(key)

    def precedes(self, header: EtcdHeader) -> bool:
        """Whether a store with this header can have the history we know."""
        return header.cluster_id == self._cluster and header.revision >= self.revision

    def _continues(self, answer: RangeAnswer) -> bool:
        """Whether the store read now has the history we know, rather than being a new or older one."""
        return self.precedes(answer.header) and all(
            self._standing.get(kv.key) == kv.mod_revision for kv in answer.kvs if kv.mod_revision <= self.revision
        )

    def _put(self, kv: KeyValue) -> Iterator[tuple[bytes, bytes | None]]:
        self._missing.pop(kv.key, None)
        if self._reported.get(kv.key) != kv.value:
            self._reported[kv.key] = kv.value
            yield kv.key, kv.value

    def _delete(self, key: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        self._missing.pop(key, None)
        if self._reported.pop(key, None) is not None:
            yield key, None


class EtcdWatch:
    """One watch of one prefix."""

    def __init__(self, gateway: Gateway, config: EtcdConfig, prefix: str, closed: asyncio.Event) -> None:
        self._gateway = gateway
        self._root = config.prefix.encode()
        self._start = (config.prefix + prefix).encode()
        self._ttl = float(config.lease_ttl)
        self._closed = closed
        self._state = WatchState(grace=config.lease_ttl + config.return_grace)
        self._foreign: set[bytes] = set()
        self._pauses = Backoff(*RETRY_SECONDS)

    async def changes(self) -> AsyncGenerator[Change, None]:
        clock = asyncio.get_running_loop().time
        state = self._state
        broken_at: float | None = None
        synced = False
        refusal = ""
        while not self._closed.is_set():
            try:
                answer = await self._gateway.call("/v3/kv/range", self._range(), RangeAnswer)
                # Owners renew every third of the TTL: a shorter break cannot have cost them their leases.
                cut_off = self._gateway.recently_down(self._ttl) or (
                    broken_at is not None and clock() - broken_at > self._ttl / 2
                )
                for change in self._changes(state.read(answer, clock(), cut_off)):
                    yield change
                if not synced:
                    synced = True
                    yield Synced()
                broken_at = None
                refusal = ""
                create = {**self._range(), "start_revision": state.revision + 1, "progress_notify": True}
                async with self._gateway.stream("/v3/watch", {"create_request": create}) as lines:
                    while True:
                        arrived = await self._next(lines)
                        for change in self._changes(state.overdue(clock())):
                            yield change
                        recently_down = self._gateway.recently_down(self._ttl)
                        for event in arrived:
                            for change in self._changes(state.apply(event, clock(), recently_down)):
                                yield change
            except Outage as why:
                log.debug("the watch of %s broke: %s", self._start.decode(), why)
                if isinstance(why, Silence):
                    broken_at = why.since
            except Refused as why:
                if str(why) != refusal:
                    refusal = str(why)
                    log.warning("etcd refuses the watch of %s: %s; trying again", self._start.decode(), why)
            except DiscoveryError:
                if not self._closed.is_set():
                    raise
            if broken_at is None:
                broken_at = clock()
            await self._pause()

    async def _next(self, lines: Lines) -> list[Event]:
        """The next events; empty when a missing key is overdue instead."""
        clock = asyncio.get_running_loop().time
        quiet_since = clock()
        limit = self._ttl
        while True:
            look_at = quiet_since + limit
            deadline = self._state.next_deadline
            try:
                async with asyncio.timeout_at(look_at if deadline is None else min(look_at, deadline)):
                    return [event for line in await lines.read() for event in self._events(line)]
            except TimeoutError:
                pass
            if deadline is not None and clock() >= deadline:
                return []
            if await self._is_up_to_date():
                quiet_since, limit = clock(), self._ttl
            elif limit == self._ttl:
                limit += SECOND_LOOK
            else:
                raise Silence(quiet_since)

    def _events(self, line: bytes) -> Iterable[Event]:
        try:
            answer = msgspec.json.decode(line, type=WatchLine, strict=False)
        except (msgspec.MsgspecError, ValueError, RecursionError) as why:
            raise Outage(f"the answer is not etcd's: {why}") from why
        if answer.result is None or answer.result.canceled:
            raise Outage(f"etcd ended the watch: {_reason(answer.result) or answer.error}")
        if answer.result.created and not self._state.precedes(answer.result.header):
            raise Outage("the store was replaced since it was read")
        self._pauses.reset()
        return answer.result.events

    async def _is_up_to_date(self) -> bool:
        """Ask etcd for changes that the stream did not report: its connection may be dead."""
        newer = {**self._range(), "min_mod_revision": self._state.revision + 1, "limit": 1, "keys_only": True}
        answer = await self._gateway.call("/v3/kv/range", newer, RangeAnswer)
        return not answer.kvs and answer.count == self._state.count

    def _range(self) -> dict[str, object]:
        return {"key": self._start or b"\0", "range_end": range_end(self._start)}

    def _changes(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Change]:
        for name, value in pairs:
            key = readable(name, self._root)
            if key is not None:
                yield Delete(key) if value is None else Put(key, value)
            elif name not in self._foreign:
                self._foreign.add(name)
                log.warning("ignoring the etcd key %r: it is not a discovery key", name)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pauses.pause()):
                await self._closed.wait()


class Silence(Outage):
    """A stream stayed open but reported nothing while the store changed."""

    def __init__(self, since: float) -> None:
        super().__init__("it fell silent")
        self.since = since


def readable(name: bytes, root: bytes) -> str | None:
    """The discovery key of an etcd key; None if it is not one of ours."""
    key = name[len(root) :]
    return key.decode() if key and all(0x20 <= byte <= 0x7E for byte in key) else None


def _reason(answer: WatchAnswer | None) -> str:
    if answer is None:
        return ""
    return answer.cancel_reason or (f"compacted at {answer.compact_revision}" if answer.compact_revision else "")
