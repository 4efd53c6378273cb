"""Which requests may have ended the workers that they were sent to.

A worker that is lost before a request's first token may have died of the request. One such loss is no evidence:
operators and faults end workers too, so the request moves. After the second it ends with an error:

- A constraint that no worker has answered under yet is rejected once two workers were lost while they began with it,
  whichever requests brought it. It is rejected for a while; its requests under way end when their own worker is lost.
- Any other request ends if no other one that had lost a worker was at the second worker. If there were others, each may
  be innocent, and moves once more.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import (
    Disconnected,
    DynamoException,
    EngineDied,
    HttpError,
    InvalidRequest,
    StreamIncomplete,
)

log = logging.getLogger(__name__)

REJECTED_SECONDS = 600.0
"""How long a constraint is rejected, and how long a loss counts against it."""
PROMPT_REJECTED_SECONDS = 60.0
"""The same for a request without one: client libraries repeat a request that failed, within seconds."""
_KEPT = 4096
_MOST_LOST = 3
"""Workers that a request without a constraint may lose, whatever others did there."""


def is_loss(error: DynamoException) -> bool:
    """Whether the worker may have died; one that hangs, leaves or rejects has not."""
    return isinstance(error, Disconnected | StreamIncomplete | EngineDied)


class Suspects:
    """What a frontend knows about all its requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered: OrderedDict[bytes, None] = OrderedDict()
        """Constraints under which a worker has generated something."""
        self._losses: OrderedDict[bytes, tuple[float, set[int]]] = OrderedDict()
        """The losses under the other constraints: when the first worker was lost, and which workers."""
        self._rejected: OrderedDict[bytes, float] = OrderedDict()
        """Until when."""
        self._carried: OrderedDict[int, int] = OrderedDict()
        """Requests per instance that had lost a worker before and wait for their first token there."""

    def suspicion(self, request: Any) -> Suspicion:
        return Suspicion(self, request)

    def is_rejected(self, key: bytes) -> bool:
        until = self._rejected.get(key)
        return until is not None and self._clock() < until

    def rejects_any(self) -> bool:
        """Drops what is over."""
        now = self._clock()
        for key in [key for key, until in self._rejected.items() if until <= now]:
            del self._rejected[key]
        return bool(self._rejected)

    def reject(self, key: bytes, seconds: float) -> None:
        _put(self._rejected, key, self._clock() + seconds)

    def answered(self, key: bytes) -> None:
        self._losses.pop(key, None)
        if key not in self._answered:
            _put(self._answered, key, None)

    def is_known(self, key: bytes) -> bool:
        return key in self._answered

    def constraint_lost(self, key: bytes, instance_id: int) -> bool:
        """Record it; returns whether the constraint has lost two workers."""
        now = self._clock()
        began, lost = self._losses.get(key, (now, set()))
        if now - began > REJECTED_SECONDS:
            began, lost = now, set()
        lost.add(instance_id)
        _put(self._losses, key, (began, lost))
        return len(lost) > 1

    def carry(self, instance_id: int, change: int) -> None:
        _put(self._carried, instance_id, max(0, self._carried.get(instance_id, 0) + change))

    def company(self, instance_id: int) -> bool:
        return self._carried.get(instance_id, 0) > 1


class Suspicion:
    """What is known about one request."""

    def __init__(self, suspects: Suspects, request: Any) -> None:
        self._suspects = suspects
        self._request = request
        self._lost: set[int] = set()
        self._carrier: int | None = None
        guided = isinstance(request, PreprocessedRequest) and request.sampling_options.guided_decoding
        self._constraint = _digest([request.model, guided]) if guided else None

    def check(self) -> None:
        """Raises InvalidRequest for a constraint that is rejected, and HttpError for a whole request that is."""
        if not self._suspects.rejects_any():
            return
        if self._constraint is not None and self._suspects.is_rejected(self._constraint):
            raise _constraint_rejected()
        if self._suspects.is_rejected(self._whole()):
            raise _request_rejected()

    def sent(self, instance_id: int) -> None:
        if self._lost:
            self._carrier = instance_id
            self._suspects.carry(instance_id, 1)

    def answered(self) -> None:
        """The worker has begun the answer."""
        self.settled()
        self._lost.clear()
        if self._constraint is not None:
            self._suspects.answered(self._constraint)

    def settled(self) -> None:
        """The request no longer waits for its first token there, and the worker lives."""
        if self._carrier is not None:
            self._suspects.carry(self._carrier, -1)
            self._carrier = None

    def worker_lost(self, instance_id: int) -> DynamoException | None:
        """The worker was lost before its first token. Returns the error that ends the request, unless it moves."""
        # It stays counted there: what was sent along fails just before or after it.
        self._carrier = None
        self._lost.add(instance_id)
        key = self._constraint
        if key is not None and not self._suspects.is_known(key):
            if not self._suspects.is_rejected(key) and self._suspects.constraint_lost(key, instance_id):
                log.warning("two workers were lost while they began with one constraint: refusing it")
                self._suspects.reject(key, REJECTED_SECONDS)
            return _constraint_rejected() if self._suspects.is_rejected(key) else None
        alone = len(self._lost) > 1 and not self._suspects.company(instance_id)
        if alone or len(self._lost) >= _MOST_LOST:
            log.warning("%d workers were lost before the first token of one request: ending it", len(self._lost))
            self._suspects.reject(self._whole(), PROMPT_REJECTED_SECONDS)
            return _request_rejected()
        return None

    def _whole(self) -> bytes:
        request = self._request
        if isinstance(request, PreprocessedRequest):
            guided = request.sampling_options.guided_decoding
            return _digest([request.model, list(request.token_ids), request.stop_conditions, guided])
        return _digest(request)


def _constraint_rejected() -> InvalidRequest:
    return InvalidRequest(
        "Workers were lost when they began with this constraint: it is refused for some minutes.",
        "guided_decoding",
        "constraint_refused",
    )


def _request_rejected() -> HttpError:
    return HttpError(502, "workers were lost before the first token of this request: it is not sent to another one")


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(value, enc_hook=repr), digest_size=16).digest()


def _put(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > _KEPT:
        kept.popitem(last=False)
