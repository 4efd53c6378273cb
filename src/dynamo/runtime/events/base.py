"""The interface of event planes: KV events and load, from workers to routers.

Subjects are dot-separated words of printable ASCII (`namespace.X.component.Y.kv-events`). A subscriber asks for one
subject, or for all below one: `namespace.X.>` (what lies deeper than `namespace.X`), `>` (everything).

The plane is lossy: a subscriber misses events published before it joined, during an outage, or faster than it reads.
Events of one publisher on one subject arrive in order and at most once. Where none may be missed, the publisher numbers
them in the data and the reader asks it again after a gap.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Protocol

from dynamo.protocols.errors import StartError

logger = logging.getLogger(__name__)

Callback = Callable[[str, bytes], None]
"""Called on the event loop with subject and data; an exception is logged and affects no other subscriber."""

_WORD = r"[!-)+-\-/-=?-~]+"  # printable ASCII without space, `*`, `.` and `>`
_SUBJECT = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_PATTERN = re.compile(rf"(?:{_WORD}\.)*(?:{_WORD}|>)")


class EventPlaneError(StartError):
    """The plane cannot be used as configured; the message names the fix."""


class Subscription(Protocol):
    def unsubscribe(self) -> None:
        """No callback runs after this returns; doing it twice is fine."""


class EventPlane(Protocol):
    """One process's access to the events. Use it on its event loop only."""

    async def start(self) -> None:
        """Make the plane ready; raises `EventPlaneError` when it cannot be used as configured."""

    async def announce(self) -> None:
        """Prepare to publish: a subscriber that joins after this returns gets the first event."""

    def publish(self, subject: str, data: bytes) -> None:
        """Send to all current subscribers. Never blocks; raises only for an invalid subject."""

    async def subscribe(self, subject: str, callback: Callback) -> Subscription:
        """After this returns, new events of all publishers known by then will arrive."""

    async def close(self) -> None:
        """End all subscriptions and leave nothing behind."""


def check_subject(subject: str) -> None:
    if not _SUBJECT.fullmatch(subject):
        raise EventPlaneError(f"{subject!r} is not an event subject: words of printable ASCII joined by dots")


def check_pattern(pattern: str) -> None:
    if not _PATTERN.fullmatch(pattern):
        raise EventPlaneError(f"{pattern!r} is neither an event subject nor one that ends in '.>'")


class Subscribers:
    """The subscriptions of one process, by subject."""

    def __init__(self) -> None:
        self._exact: dict[str, tuple[LocalSubscription, ...]] = {}
        self._below: dict[str, tuple[LocalSubscription, ...]] = {}

    def add(self, pattern: str, callback: Callback) -> LocalSubscription:
        check_pattern(pattern)
        subscription = LocalSubscription(self, pattern, callback)
        table, key = self._place(pattern)
        table[key] = (*table.get(key, ()), subscription)
        return subscription

    def remove(self, subscription: LocalSubscription) -> None:
        table, key = self._place(subscription.pattern)
        left = tuple(each for each in table.get(key, ()) if each is not subscription)
        if left:
            table[key] = left
        else:
            table.pop(key, None)

    def clear(self) -> None:
        for table in (self._exact, self._below):
            for subscriptions in table.values():
                for subscription in subscriptions:
                    subscription.active = False
            table.clear()

    def deliver(self, subject: str, data: bytes) -> None:
        for subscription in self._exact.get(subject, ()):
            subscription.deliver(subject, data)
        for prefix, subscriptions in tuple(self._below.items()):
            if subject.startswith(prefix):
                for subscription in subscriptions:
                    subscription.deliver(subject, data)

    def _place(self, pattern: str) -> tuple[dict[str, tuple[LocalSubscription, ...]], str]:
        return (self._below, pattern[:-1]) if pattern.endswith(">") else (self._exact, pattern)


class LocalSubscription:
    """One entry of `Subscribers`."""

    def __init__(self, subscribers: Subscribers, pattern: str, callback: Callback) -> None:
        self.pattern = pattern
        self.active = True
        self.on_end: Callable[[], None] | None = None
        self._subscribers = subscribers
        self._callback = callback

    @property
    def prefix(self) -> str:
        """The common prefix of the subjects it receives."""
        return self.pattern.removesuffix(">")

    def deliver(self, subject: str, data: bytes) -> None:
        if not self.active:
            return  # another callback for this event ended it
        try:
            self._callback(subject, data)
        except Exception:
            logger.exception("the subscriber to %s failed", self.pattern)

    def unsubscribe(self) -> None:
        if not self.active:
            return
        self.active = False
        self._subscribers.remove(self)
        if self.on_end:
            self.on_end()
