"""What can go wrong, and a seeded order of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum

from msgspec import Struct


class FaultKind(Enum):
    KILL = "SIGKILL, then a new process"
    DRAIN = "SIGTERM, then a new process"
    STOP = "SIGSTOP for a while"
    RESET = "connections reset"
    DELAY = "everything later"
    HALF_OPEN = "bytes lost, connections open"
    NATS = "NATS restarted"
    ETCD = "etcd restarted"
    FULL_DISK = "no byte can be written to a file"
    NO_FILES = "no file and no connection can be opened"
    CLOCK = "the time of day jumps, for all processes"
    PARTITION = "the cable to the other host is cut"


PROCESS = (FaultKind.KILL, FaultKind.DRAIN, FaultKind.STOP)
MACHINE = (FaultKind.FULL_DISK, FaultKind.NO_FILES, FaultKind.CLOCK)
LINK = (FaultKind.RESET, FaultKind.DELAY, FaultKind.HALF_OPEN)


class Fault(Struct, frozen=True):
    kind: FaultKind
    worker: int
    """Its number; without meaning where a service is restarted."""
    seconds: float
    """How long it lasts, if it lasts."""

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} worker {self.worker} {self.seconds:.2f} s"


def schedule(seed: int, kinds: Sequence[FaultKind], workers: int, longest: float = 4.0) -> Iterator[Fault]:
    """Faults without end; the same ones for the same arguments."""
    chance = random.Random(f"faults {seed}")
    while True:
        yield Fault(chance.choice(kinds), chance.randrange(workers), chance.uniform(0.05, longest))
