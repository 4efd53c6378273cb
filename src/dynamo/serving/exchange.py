"""What frontends of the same workers tell each other: what they serve to whom, and which requests end workers.

Lossy, and late by `EXCHANGE_SECONDS`: totals are sent, not changes. A frontend that hears of no other sends only that
it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from msgspec import Struct

from dynamo.protocols.errors import StartError
from dynamo.router.choice.elsewhere import EXCHANGE_SECONDS, TenantService
from dynamo.router.suspects import Suspects, Verdicts
from dynamo.runtime.events import EventPlane, Subscription
from dynamo.runtime.names import new_instance_id
from dynamo.serving.served_model import ServedModel

log = logging.getLogger(__name__)

SUBJECT = "frontends"
PRESENCE_SECONDS = (0.2, 1.0, 5.0)
"""Pauses between two messages that say that this frontend is there; the last one repeats."""
_MOST_FRONTENDS = 1024


class FrontendReport(Struct, frozen=True, kw_only=True):
    frontend: int
    services: dict[str, list[TenantService]] = {}
    """By namespace and model."""
    verdicts: Verdicts | None = None


class FrontendExchange:
    """From `start` to `close`; `models` are those that are served now."""

    def __init__(self, events: EventPlane, suspects: Suspects, models: Callable[[], Iterable[ServedModel]]) -> None:
        self.frontend = new_instance_id()
        self._events = events
        self._suspects = suspects
        self._models = models
        self._decode = msgspec.msgpack.Decoder(FrontendReport).decode
        self._others: dict[int, None] = {}
        self._sent: dict[str, list[TenantService]] = {}
        self._verdicts_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[Subscription | None] | None = None
        self._presence: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._suspects.on_verdict = self._judged
        self._joining = asyncio.create_task(self._join())
        self._presence = asyncio.create_task(self._say_that_we_are_here())

    async def close(self) -> None:
        self._suspects.on_verdict = lambda: None
        if self._timer:
            self._timer.cancel()
        tasks = [task for task in (self._joining, self._presence) if task]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if ended is not None and not isinstance(ended, BaseException):
                ended.unsubscribe()

    @property
    def hears(self) -> bool:
        """Whether there are others."""
        return bool(self._others)

    def follow(self, model: ServedModel) -> None:
        """Tell the others what this model's router serves."""
        model.router.queue.waiting.on_change = self._soon

    async def _join(self) -> Subscription | None:
        try:
            await self._events.announce()
            return await self._events.subscribe(SUBJECT, self._receive)
        except StartError as error:
            log.error("cannot hear the other frontends: %s", error)
            return None

    async def _say_that_we_are_here(self) -> None:
        assert self._joining
        await asyncio.wait([self._joining])
        pauses = list(PRESENCE_SECONDS)
        while True:
            self._publish(FrontendReport(frontend=self.frontend))
            await asyncio.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])

    def _judged(self) -> None:
        self._verdicts_due = True
        if self._others:
            self._tell()

    def _soon(self) -> None:
        if self._timer is None and self._others:
            self._timer = asyncio.get_running_loop().call_later(EXCHANGE_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._tell()
        if any(model.router.queue.is_busy for model in self._models()):
            self._soon()

    def _tell(self) -> None:
        services: dict[str, list[TenantService]] = {}
        for model in self._models():
            queue = model.router.queue
            name, report = _name(model), queue.service()
            if report != self._sent.get(name, []) or queue.waiting.count:
                services[name] = self._sent[name] = report
            queue.dispatch()
        if services or self._verdicts_due:
            verdicts = self._suspects.verdicts() if self._verdicts_due else None
            self._verdicts_due = False
            self._publish(FrontendReport(frontend=self.frontend, services=services, verdicts=verdicts))

    def _publish(self, report: FrontendReport) -> None:
        with suppress(StartError):
            self._events.publish(SUBJECT, msgspec.msgpack.encode(report))

    def _receive(self, _: str, data: bytes) -> None:
        try:
            report = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.debug("ignoring a malformed message of a frontend: %s", error)
            return
        if report.frontend == self.frontend:
            return
        if report.frontend not in self._others:
            self._others[report.frontend] = None
            if len(self._others) > _MOST_FRONTENDS:
                del self._others[next(iter(self._others))]
            # It may have begun later than what we know.
            self._sent.clear()
            self._verdicts_due = bool(self._suspects.verdicts().rejected or self._suspects.verdicts().blamed)
            self._soon()
        if report.verdicts:
            self._suspects.learn(report.verdicts)
        for model in self._models():
            service = report.services.get(_name(model))
            if service is not None:
                queue = model.router.queue
                queue.elsewhere.learn(report.frontend, service)
                queue.dispatch()


def _name(model: ServedModel) -> str:
    """Frontends of different namespaces share no workers."""
    namespaces = {instance.namespace for instance in model.router.instances.all()}
    return f"{min(namespaces, default='')}/{model.name}"
