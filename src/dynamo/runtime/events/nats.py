"""Events through NATS: our subjects are its subjects, below `dynamo.events`, on the connection of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dynamo.runtime.events.base import Callback, EventPlaneError, Subscription, check_pattern, check_subject
from dynamo.runtime.nats import NatsConnection, NatsError, NatsSubscription

logger = logging.getLogger(__name__)

ROOT = "dynamo.events."
"""Keeps `>` to events: requests and other users share the server."""


class NatsEventPlane:
    """Uses a connection that someone else starts and closes. `dropped` counts the events NATS did not take."""

    def __init__(self, connection: NatsConnection) -> None:
        self.dropped = 0
        self._connection = connection
        self._subscriptions: set[NatsSubscription] = set()
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
        ending = _Ending(subscription, self._subscriptions)
        try:
            await self._connection.flush()
        except NatsError:
            pass  # an outage: the connection asks for the subject again at its end
        except BaseException:
            ending.unsubscribe()
            raise
        return ending

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


class _Ending:
    def __init__(self, subscription: NatsSubscription, among: set[NatsSubscription]) -> None:
        self._subscription = subscription
        self._among = among

    def unsubscribe(self) -> None:
        self._among.discard(self._subscription)
        self._subscription.unsubscribe()
