"""Events through NATS: our subjects are its subjects, below `dynamo.events`, on the connection of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakSet

from dynamo.runtime.events.base import Callback, EventPlaneError, Subscription, check_pattern, check_subject
from dynamo.runtime.nats.connection import NatsConnection, NatsError, NatsSubscription

logger = logging.getLogger(__name__)

ROOT = "dynamo.events."
"""With this prefix `>` matches events only: requests and other users share the server."""


class NatsEventPlane:
    """Uses a connection that its owner starts and closes. `dropped` counts the events that NATS did not accept."""

    def __init__(self, connection: NatsConnection) -> None:
        self.dropped = 0
        self._connection = connection
        # Weak, so that one that was ended disappears here too: the connection holds each until it is unsubscribed.
        self._subscriptions: WeakSet[NatsSubscription] = WeakSet()
        self._warned = False
        self._closed = False
        self._stop_listening: Callable[[], None] | None = None

    async def start(self) -> None:
        self._stop_listening = self._connection.on_state(self._on_state)

    async def announce(self) -> None:
        pass

    def publish(self, subject: str, data: bytes) -> None:
        check_subject(subject)
        if self._closed:
            return
        try:
            self._connection.publish(ROOT + subject, data)
        except NatsError as error:
            self.dropped += 1
            if not self._warned:
                self._warned = True
                logger.warning("events are lost: %s", error)

    async def subscribe(self, subject: str, callback: Callback) -> Subscription:
        check_pattern(subject)

        def deliver(subject: str, data: bytes, reply: str) -> None:
            callback(subject.removeprefix(ROOT), data)

        try:
            subscription = self._connection.subscribe(ROOT + subject, deliver)
        except NatsError as error:
            raise EventPlaneError(str(error)) from error
        self._subscriptions.add(subscription)
        try:
            await self._connection.flush()
        except NatsError:
            pass  # an outage: the connection subscribes again when it is over
        except BaseException:
            subscription.unsubscribe()
            raise
        return subscription

    async def close(self) -> None:
        self._closed = True
        if self._stop_listening:
            self._stop_listening()
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        self._subscriptions.clear()

    def _on_state(self, connected: bool) -> None:
        if connected:
            self._warned = False
