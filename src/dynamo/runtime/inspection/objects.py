"""The objects of this process by type, found by following references a slice at a time.

The garbage collector has a list of them too. Making a copy of it would hold all threads, for about a millisecond per
20,000 objects.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dynamo.runtime.inspection.slices import paced

REST_SECONDS = 0.0045
"""After each half millisecond, so that the event loop becomes no more than a tenth slower."""
LONGEST_SECONDS = 30.0
"""A process with more objects than can be counted in this time has some of them counted."""
AT_ONCE = 16
"""Objects between two looks at the clock."""
LARGEST = 10_000
"""Entries of a container that are followed: those of a larger one could not be had in one slice."""
SHARDS = 1024
"""Sets that remember what was seen: a single one would take many milliseconds whenever it grows."""
_CONTAINERS = frozenset(map(id, (dict, list, set, tuple, frozenset)))


class ObjectWalk:
    """Counts what the collector tracks and can be reached from `roots`."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._counts: Counter[int] = Counter()
        self._types: dict[int, type] = {}
        """By their ids: a class may have made itself unhashable."""
        self.large: Counter[str] = Counter()
        """Entries of the containers that were not followed, by their types."""
        self._pending = list(roots)
        self._seen: list[set[int]] = [set() for _ in range(SHARDS)]

    def steps(self) -> Iterator[None]:
        """Ends when all are counted; may pause at each step. Objects that come meanwhile may be left out."""
        while self._pending:
            for _ in range(min(AT_ONCE, len(self._pending))):
                self._visit(self._pending.pop())
            yield None

    def by_type(self) -> Counter[str]:
        types: Counter[str] = Counter()
        for number, count in self._counts.items():
            types[_name(self._types[number])] += count
        return types

    def _visit(self, each: Any) -> None:
        number = id(each)
        seen = self._seen[(number >> 4) % SHARDS]
        if number in seen:
            return
        seen.add(number)
        kind = type(each)
        self._types[id(kind)] = kind
        self._counts[id(kind)] += 1
        if id(kind) in _CONTAINERS and len(each) > LARGEST:
            self.large[_name(kind)] += len(each)
        else:
            self._pending += filter(gc.is_tracked, gc.get_referents(each))


def object_counts(
    tasks: Iterable[Any] = (), most: int = 30, ended: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """What modules, threads and `tasks` hold. For a thread beside the event loop: it sleeps in between.

    The count is incomplete where it takes too long, or `ended` turns true.
    """
    own = threading.get_ident()
    frames = [frame for thread, frame in sys._current_frames().items() if thread != own]
    walk = ObjectWalk([*sys.modules.values(), *frames, *tasks])
    del frames
    end = time.monotonic() + LONGEST_SECONDS
    complete = True
    for _ in paced(walk.steps(), rest=REST_SECONDS):
        if time.monotonic() > end or ended():
            complete = False
            break
    types = walk.by_type()
    return {
        "objects": types.total(),
        "complete": complete,
        "types": dict(types.most_common(most)),
        "not_followed": dict(walk.large),
    }


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
