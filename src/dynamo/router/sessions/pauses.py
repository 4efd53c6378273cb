"""How long sessions pause between their turns, learned by what ended the last one: a tool by its name, or an answer.

For each kind of pause the rate of return (returns per second of idleness) is counted for each age, and again for the
sessions whose pause before was about as long. A session that returns sooner or later than those has its own factor.
Without any knowledge the rate falls with age, so that the longest idle session gives way first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import log

from msgspec import Struct

from dynamo.kv.pauses import AGES, UNKNOWN
from dynamo.router.sessions.table import MOST_SESSIONS, Key, SessionTable

MOST_KINDS = 256
"""Further tools count as one kind."""
FORGET_SECONDS = AGES[-1]
"""A session that has been away for so long counts as one that does not return."""
_EDGES = (0.0, *AGES)
_WIDTHS = tuple(end - begin for begin, end in pairwise(_EDGES))
_PRIOR = (*(UNKNOWN / max(1.0, (begin + end) / 2) for begin, end in pairwise(_EDGES)), UNKNOWN / AGES[-1])
_KIND_WEIGHT, _LAST_WEIGHT, _OWN_WEIGHT = 1.0, 0.5, 3.0
"""Returns that the more general rates count as: beside those of a kind, of a length of the last pause, of a session."""
_LENGTH_STEP = 4.0
"""Pauses are about as long if they are within this factor."""
OTHER = "other"


class KindOfPause:
    """Pauses of one kind: by age, how many ended and how many seconds were spent there."""

    __slots__ = ("ended", "seconds")

    def __init__(self) -> None:
        self.ended = [0.0] * len(_EDGES)
        self.seconds = [0.0] * len(_EDGES)

    def add(self, pause: float, *, returned: bool) -> None:
        last = bisect_right(AGES, pause)
        for age in range(last):
            self.seconds[age] += _WIDTHS[age]
        spent = pause - _EDGES[last]
        if returned:
            self.ended[last] += 1
            # When in this stretch it returned is chance: with hardly any time spent, the rate would have no bound.
            spent = _WIDTHS[last] / 2 if last < len(_WIDTHS) else max(spent, AGES[-1] / 2)
        self.seconds[last] += spent

    def rates(self, general: Sequence[float], weight: float) -> list[float]:
        columns = zip(self.ended, self.seconds, general, strict=True)
        return [(ended + weight) / (seconds + weight / rate) for ended, seconds, rate in columns]


class _Paused(Struct):
    kind: str
    since: float | None
    """None while a turn runs."""
    last: int = -1
    """The class of its last pause's length."""
    returns: float = 0.0
    expected: float = 0.0
    """What the kinds of its pauses made of their lengths: as many returns as counted, for a session like others."""


class PauseBook:
    """The pauses of the sessions of one router. Time is an input."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._sessions: SessionTable[_Paused] = SessionTable(most)
        self._kinds: dict[str, KindOfPause] = {}
        self._after: dict[tuple[str, int], KindOfPause] = {}
        """By the kind, and the class of the length of the pause before."""
        self._all = KindOfPause()

    def began(self, key: Key, now: float) -> None:
        """A turn of the session begins."""
        known = self._sessions.get(key)
        if known is None:
            self._sessions.add(key, _Paused("", None))
        elif known.since is not None:
            pause = max(0.0, now - known.since)
            known.returns += 1
            known.expected += _returns(self._rates(known), pause)
            self._learn(known, min(pause, FORGET_SECONDS), returned=pause <= FORGET_SECONDS)
            known.since, known.last = None, int(log(max(1.0, pause), _LENGTH_STEP))
            self._sessions.used(key)

    def paused(self, key: Key, kind: str, now: float) -> tuple[float, ...]:
        """A turn has ended, for this reason; the rates at which the session is worth its blocks, by its idle age."""
        known = self._sessions.get(key)
        if known is None:
            known = _Paused(kind, now)
            self._sessions.add(key, known)
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            kind = OTHER
        known.kind, known.since = kind, now
        return _indices(_with_factor(self._rates(known), known))

    def ended(self, key: Key) -> None:
        """The session does not return."""
        self._sessions.remove(key)

    def sweep(self, now: float) -> None:
        """Count those that have been away for too long as gone."""
        gone = [
            (key, each)
            for key, each in self._sessions.newest()
            if each.since is not None and now - each.since > FORGET_SECONDS
        ]
        for key, each in gone:
            self._learn(each, FORGET_SECONDS, returned=False)
            self._sessions.remove(key)

    def _learn(self, session: _Paused, pause: float, *, returned: bool) -> None:
        kind, after = session.kind, (session.kind, session.last)
        for table in (
            self._all,
            self._kinds.setdefault(kind, KindOfPause()),
            self._after.setdefault(after, KindOfPause()),
        ):
            table.add(pause, returned=returned)

    def _rates(self, session: _Paused) -> list[float]:
        rates = self._all.rates(_PRIOR, _KIND_WEIGHT)
        if kind := self._kinds.get(session.kind):
            rates = kind.rates(rates, _KIND_WEIGHT)
        if after := self._after.get((session.kind, session.last)):
            rates = after.rates(rates, _LAST_WEIGHT)
        return rates


def _returns(rates: Sequence[float], pause: float) -> float:
    """The returns expected in a pause of this length."""
    last = bisect_right(AGES, pause)
    return sum(map(float.__mul__, rates[:last], _WIDTHS)) + rates[last] * (pause - _EDGES[last])


def _with_factor(rates: Sequence[float], session: _Paused) -> list[float]:
    """The rates of this session, which its pauses so far and its present age say more about."""
    found, expected = [], session.expected + _OWN_WEIGHT
    for age, rate in enumerate(rates):
        found.append(rate * (session.returns + _OWN_WEIGHT) / expected)
        if age < len(_WIDTHS):
            expected += rate * _WIDTHS[age]
    return found


def _indices(rates: Sequence[float]) -> tuple[float, ...]:
    """By age, the best ratio of the chance to return by some later age and the time that the blocks are kept for it."""
    found = [rates[-1]]
    ahead: list[tuple[float, float, float, float]] = []
    """Stretches of ages, the next one last: ratio, chance to return there, time kept, chance to stay."""
    for rate, width in zip(reversed(rates[:-1]), reversed(_WIDTHS), strict=True):
        stay = 1.0 / (1.0 + rate * width)
        comes, kept = 1 - stay, (1 - stay) / rate
        ratio = rate
        while ahead and ahead[-1][0] > ratio:
            _, more, longer, stays = ahead.pop()
            comes, kept, stay = comes + stay * more, kept + stay * longer, stay * stays
            ratio = comes / kept
        ahead.append((ratio, comes, kept, stay))
        found.append(ratio)
    return tuple(round(each, 6) for each in reversed(found))
