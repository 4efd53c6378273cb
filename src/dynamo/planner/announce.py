"""Publishes what the planner says on the event plane, for the fleet views of frontends."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from dynamo.planner.config import PlannerConfig
from dynamo.protocols.errors import StartError
from dynamo.protocols.planner import LONGEST_SENTENCE, MOST_SENTENCES, PlannerReport, PlannerSentence, subject
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.events import EventPlane
from dynamo.runtime.network import Local, Network

log = logging.getLogger(__name__)


class Announcer:
    def __init__(self, config: PlannerConfig, events: EventPlane) -> None:
        self._config = config
        self._events = events
        self._id = secrets.token_hex(8)
        self._said: deque[PlannerSentence] = deque(maxlen=MOST_SENTENCES)

    def say(self, sentence: str) -> None:
        text = sentence[:LONGEST_SENTENCE]
        if not self._said or self._said[-1].text != text:
            self._said.append(PlannerSentence(time=time.time(), text=text))
        report = PlannerReport(
            planner=self._id,
            advisory=self._config.advisory,
            interval=self._config.load_adjustment_interval_seconds,
            sentences=list(self._said),
        )
        self._events.publish(subject(self._config.namespace), msgspec.msgpack.encode(report))


@asynccontextmanager
async def open_announcements(config: PlannerConfig, environ: Mapping[str, str]) -> AsyncIterator[Callable[[str], None]]:
    """Yield what announces a sentence. Where the event plane cannot be used, the planner goes on without it."""
    network: Network | None = None
    announcer: Announcer | None = None
    try:
        network = Network(RuntimeConfig.from_env(environ).without_status(), Local())
        await network.start()
        await network.events.announce()
        announcer = Announcer(config, network.events)
    except (StartError, OSError, ValueError) as error:
        log.warning("the fleet view will not show what the planner says: %s", error)
    try:
        yield announcer.say if announcer else lambda sentence: None
    finally:
        if network is not None:
            await network.close()
