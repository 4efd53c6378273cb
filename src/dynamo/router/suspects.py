"""Which requests may have ended the workers that they were sent to.

A worker that is lost before a request's first token may have died of the request. One such loss is no evidence:
operators and faults end workers too, so the request moves. After the second it ends with an error:

- A constraint that no worker has answered under yet is rejected once two workers were lost while they began with it,
  whichever requests brought it. It is rejected for a while; its requests under way end when their own worker is lost.
- Any other request ends if no other one that had lost a worker was at the second worker. If there were others, each may
  be innocent, and moves once more.

Where several API keys share the workers, the key of a request that ended so is blamed for a while. Its requests end
with the first worker they lose, and the losses of others at the same workers count for nothing. Until it is known which
key it is, suspects of different keys are kept at different workers. A request also ends when three workers are lost
within a few tokens of its answer.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from dynamo.protocols.engine import PreprocessedRequest, Tenant
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
"""How long a constraint is rejected, how long a loss counts against it, and how long a key is blamed."""
PROMPT_REJECTED_SECONDS = 60.0
"""The same for a request without one: client libraries repeat a request that failed, within seconds."""
_KEPT = 4096
_FEW_TOKENS = 8
_SCENE_SECONDS = 5.0
"""Streams of one instance that break within this time broke of the same loss."""
_MOST_LOST = 3
"""Workers that a request without a constraint may lose, whatever others did there."""

V = TypeVar("V")
K = TypeVar("K")


def is_loss(error: DynamoException) -> bool:
    """Whether the worker may have died; one that leaves or rejects has not. The caller knows whether one hangs."""
    return isinstance(error, Disconnected | StreamIncomplete | EngineDied)


class Suspects:
    """What a frontend knows about all its requests. `on_verdict` is called when something new is rejected or blamed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_verdict: Callable[[], None] = lambda: None
        self._clock = clock
        self._answered: OrderedDict[bytes, None] = OrderedDict()
        """Constraints under which a worker has generated something."""
        self._losses: OrderedDict[bytes, tuple[float, set[int]]] = OrderedDict()
        """The losses under the other constraints: when the first worker was lost, and which workers."""
        self._rejected: OrderedDict[bytes, float] = OrderedDict()
        """Until when."""
        self._blamed: OrderedDict[str, float] = OrderedDict()
        """Keys whose requests have ended workers, and until when that counts."""
        self._explained: OrderedDict[int, None] = OrderedDict()
        """Workers whose loss is put down to a key that is blamed."""
        self._present: dict[int, Present] = {}
        """By instance."""
        self._scenes: OrderedDict[int, tuple[float, Present]] = OrderedDict()
        """What was at instances when they were lost, and when that was."""

    def admit(self, request: Any, tenant: Tenant | None, known: Suspicion | None) -> Suspicion | None:
        """Raises InvalidRequest or HttpError for a request that is rejected.

        Returns what is `known` about it, or None: until it loses a worker, nothing is counted of a request without a
        constraint where keys do not share the workers.
        """
        if known is None and not (_guidance(request) or (tenant and tenant.shares) or self.rejects_any()):
            return None
        suspicion = known or self.suspicion(request, tenant)
        suspicion.check()
        return suspicion

    def suspicion(self, request: Any, tenant: Tenant | None = None) -> Suspicion:
        return Suspicion(self, request, tenant.name if tenant and tenant.shares else "")

    def is_rejected(self, key: bytes) -> bool:
        until = self._rejected.get(key)
        return until is not None and self._clock() < until

    def rejects_any(self) -> bool:
        """Drops what is over."""
        if not self._rejected:
            return False
        now = self._clock()
        for key in [key for key, until in self._rejected.items() if until <= now]:
            del self._rejected[key]
        return bool(self._rejected)

    def reject(self, key: bytes, seconds: float) -> None:
        _put(self._rejected, key, self._clock() + seconds)
        self.on_verdict()

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

    def is_blamed(self, owner: str) -> bool:
        return self._blamed.get(owner, 0.0) > self._clock()

    def blame(self, owner: str, lost: Collection[int]) -> None:
        """Put the loss of these workers down to a key."""
        if not owner:
            return
        if not self.is_blamed(owner):
            log.warning("requests of the key %s ended workers: they move no more for some minutes", owner)
        _put(self._blamed, owner, self._clock() + REJECTED_SECONDS)
        for instance_id in lost:
            _put(self._explained, instance_id, None)
        self.on_verdict()

    def is_explained(self, instance_id: int, owner: str) -> bool:
        """Whether another key is to blame for the loss of this worker."""
        if not owner or not self._blamed:
            return False
        if instance_id in self._explained:
            return True
        begun = self.scene(instance_id).begun
        return any(self.is_blamed(each) for each in begun if each != owner)

    def arrived(self, instance_id: int, owner: str) -> None:
        present = self._present.get(instance_id)
        if present is None:
            present = self._present[instance_id] = Present()
        present.begun[owner] += 1

    def left(self, instance_id: int, owner: str) -> None:
        present = self._present[instance_id]
        present.begun[owner] -= 1
        if not present.begun[owner]:
            del present.begun[owner]
            if not present.begun:
                del self._present[instance_id]

    def carry(self, instance_id: int, owner: str, change: int) -> None:
        self._present[instance_id].carried[owner] += change

    def scene(self, instance_id: int) -> Present:
        """What was at an instance that is lost now: its streams break one after the other."""
        now, present = self._clock(), self._present.get(instance_id, Present())
        at, found = self._scenes.get(instance_id, (now, Present()))
        if now - at > _SCENE_SECONDS:
            at, found = now, Present()
        found.begun |= present.begun
        found.carried |= present.carried
        _put(self._scenes, instance_id, (at, found))
        return found

    def company(self, instance_id: int) -> bool:
        return sum(self.scene(instance_id).carried.values()) > 1

    def carriers(self, owner: str) -> set[int]:
        """Where suspects of other keys wait for their first token."""
        return {
            instance_id
            for instance_id, present in self._present.items()
            if any(count and each != owner for each, count in present.carried.items())
        }

    def verdicts(self) -> Verdicts:
        """What other frontends should know."""
        now = self._clock()
        return Verdicts(
            rejected={key: until - now for key, until in self._rejected.items() if until > now},
            blamed={owner: until - now for owner, until in self._blamed.items() if until > now},
            explained=list(self._explained),
        )

    def learn(self, verdicts: Verdicts) -> None:
        """Adopt what another frontend knows."""
        now = self._clock()
        _prolong(self._rejected, verdicts.rejected, now)
        _prolong(self._blamed, verdicts.blamed, now)
        for instance_id in verdicts.explained:
            _put(self._explained, instance_id, None)


class Present(Struct):
    """Requests at one instance, by key; "" where keys do not share the workers."""

    begun: Counter[str] = field(default_factory=Counter)
    """All, where keys share the workers; else only those carried."""
    carried: Counter[str] = field(default_factory=Counter)
    """Those that had lost a worker before and wait for their first token."""


class Verdicts(Struct, frozen=True, kw_only=True):
    """What one frontend tells the others; the numbers are seconds that are left."""

    rejected: dict[bytes, float]
    blamed: dict[str, float]
    explained: list[int]


class Suspicion:
    """What is known about one request. `owner` is its key, where several share the workers."""

    def __init__(self, suspects: Suspects, request: Any, owner: str = "") -> None:
        self._suspects = suspects
        self._request = request
        self._owner = owner
        self._lost: set[int] = set()
        self._at: int | None = None
        """Where it is, if that is counted."""
        self._carried = False
        self._generated = 0
        """Tokens of the answer when the last worker was lost within it."""
        self._lost_late: set[int] = set()
        guided = _guidance(request)
        self._constraint = _digest([request.model, guided]) if guided else None

    def check(self) -> None:
        """Raises InvalidRequest for a constraint that is rejected, and HttpError for a whole request that is."""
        if not self._suspects.rejects_any():
            return
        constraint, rejected = self._constraint, self._suspects.is_rejected
        if constraint is not None and (rejected(constraint) or rejected(self._constraint_of_owner())):
            raise _constraint_rejected()
        if rejected(self._whole()):
            raise _request_rejected()

    def shunned(self) -> set[int]:
        """Workers that it should not be sent to: if one dies, it must be clear whose request it was."""
        return self._suspects.carriers(self._owner) if self._lost and self._owner else set()

    @property
    def must_shun(self) -> bool:
        """It has lost two workers, so a third beside another suspect could end it innocently."""
        return bool(self._owner) and len(self._unexplained(self._lost)) > 1

    def sent(self, instance_id: int) -> None:
        if self._owner or self._lost:
            self._at = instance_id
            self._suspects.arrived(instance_id, self._owner)
            if self._lost:
                self._carried = True
                self._suspects.carry(instance_id, self._owner, 1)

    def answered(self) -> None:
        """The worker has begun the answer."""
        if self._lost:
            self._set_down()
            self._lost.clear()
        if self._constraint is not None:
            self._suspects.answered(self._constraint)

    def settled(self) -> None:
        """The request is no longer there."""
        if self._at is not None:
            self._set_down()
            self._suspects.left(self._at, self._owner)
            self._at = None

    def _set_down(self) -> None:
        if self._carried and self._at is not None:
            self._suspects.carry(self._at, self._owner, -1)
        self._carried = False

    def explained(self, instance_id: int) -> bool:
        """Whether another key is to blame for the loss of this worker."""
        return self._suspects.is_explained(instance_id, self._owner)

    def worker_lost(self, instance_id: int, *, generated: int | None = None) -> DynamoException | None:
        """The worker was lost: before its first token, or after this many of the answer in all.

        Returns the error that ends the request, unless it moves.
        """
        suspects, key, owner = self._suspects, self._constraint, self._owner
        suspects.scene(instance_id)
        self.settled()
        if owner and suspects.is_blamed(owner):
            log.warning("a worker was lost with a request whose key has ended workers: ending it")
            return self._convict({instance_id})
        if self.explained(instance_id):
            return None
        if generated is not None:
            return self._lost_while_answering(instance_id, generated)
        self._lost.add(instance_id)
        if key is not None and not suspects.is_known(key):
            if not suspects.is_rejected(key) and suspects.constraint_lost(key, instance_id):
                log.warning("two workers were lost while they began with one constraint: refusing it")
                suspects.reject(key, REJECTED_SECONDS)
                suspects.blame(owner, self._lost)
            return _constraint_rejected() if suspects.is_rejected(key) else None
        lost = self._unexplained(self._lost)
        alone = len(lost) > 1 and not suspects.company(instance_id)
        if alone or len(lost) >= _MOST_LOST:
            log.warning("%d workers were lost before the first token of one request: ending it", len(lost))
            return self._convict(lost)
        return None

    def _lost_while_answering(self, instance_id: int, generated: int) -> DynamoException | None:
        """A request that ends workers within its answer does so at the same place again."""
        if not self._owner:
            return None
        if generated - self._generated > _FEW_TOKENS:
            self._lost_late.clear()
        self._generated = generated
        self._lost_late.add(instance_id)
        lost = self._unexplained(self._lost_late)
        if len(lost) < _MOST_LOST:
            return None
        log.warning("%d workers were lost within a few tokens of one answer: ending it", len(lost))
        return self._convict(lost)

    def _convict(self, lost: Collection[int]) -> DynamoException:
        self._suspects.blame(self._owner, lost)
        self._suspects.reject(self._whole(), REJECTED_SECONDS if self._owner else PROMPT_REJECTED_SECONDS)
        if self._constraint is not None and not self._suspects.is_known(self._constraint):
            self._suspects.reject(self._constraint_of_owner(), REJECTED_SECONDS)
            return _constraint_rejected()
        return _request_rejected()

    def _unexplained(self, lost: Collection[int]) -> set[int]:
        return {each for each in lost if not self._suspects.is_explained(each, self._owner)}

    def _constraint_of_owner(self) -> bytes:
        """Nobody may have the constraints of others refused by sending them beside a deadly prompt."""
        return _digest([self._owner, self._constraint])

    def _whole(self) -> bytes:
        request = self._request
        if isinstance(request, PreprocessedRequest):
            ids, stops, sampling = list(request.token_ids), request.stop_conditions, request.sampling_options
            return _digest([self._owner, request.model, ids, stops, sampling, request.extra_args])
        return _digest([self._owner, request])


def _constraint_rejected() -> InvalidRequest:
    return InvalidRequest(
        "Workers were lost when they began with this constraint: it is refused for some minutes.",
        "guided_decoding",
        "constraint_refused",
    )


def _request_rejected() -> HttpError:
    return HttpError(502, "workers were lost before the first token of this request: it is not sent to another one")


def _guidance(request: Any) -> Any:
    return isinstance(request, PreprocessedRequest) and request.sampling_options.guided_decoding


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(value, enc_hook=repr), digest_size=16).digest()


def _prolong(kept: OrderedDict[K, float], found: dict[K, float], now: float) -> None:
    for key, seconds in found.items():
        until = now + min(seconds, REJECTED_SECONDS)
        if until > kept.get(key, 0.0):
            _put(kept, key, until)


def _put(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    if len(kept) > _KEPT:
        kept.popitem(last=False)


def _count(kept: OrderedDict[int, Counter[str]], instance_id: int, owner: str, change: int) -> None:
    owners = kept.get(instance_id)
    if owners is None:
        if change < 0:
            return
        owners = Counter()
        _put(kept, instance_id, owners)
    left = owners[owner] + change
    if left > 0:
        owners[owner] = left
    else:
        del owners[owner]
        if not owners:
            del kept[instance_id]
