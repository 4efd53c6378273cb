"""What was applied to each object, so that only differences are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.kubernetes.operator.kinds import name_of

Object = Mapping[str, Any]
_Key = tuple[str, str, str]


class _AppliedObject(Struct, frozen=True):
    metadata: dict[str, Any]


class AppliedObjects:
    """By kind, namespace and name: the words that were applied, and the version of the spec which that made.

    Somebody who changes the object's spec by hand raises that version: the words are applied again. An operator that
    begins knows nothing, and applies everything once; where that changes nothing, the object keeps its version.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[str, int | None, str]] = {}

    def differs(self, wanted: Object, seen: Object | None, *, watched: bool) -> bool:
        known = self._known.get(_key(wanted))
        if known is None or known[0] != _digest(wanted):
            return True
        if not watched:
            return False
        metadata = (seen or {}).get("metadata") or {}
        return seen is None or metadata.get("uid") != known[2] or metadata.get("generation", 0) > (known[1] or 0)

    def note(self, wanted: Object, answer: bytes) -> None:
        metadata = msgspec.json.decode(answer, type=_AppliedObject).metadata
        self._known[_key(wanted)] = (_digest(wanted), metadata.get("generation"), metadata.get("uid", ""))

    def forget(self) -> None:
        """All is applied again: what nobody watches may have been changed."""
        self._known.clear()


def _key(found: Object) -> _Key:
    return found["kind"], found["metadata"].get("namespace", ""), name_of(found)


def _digest(wanted: Object) -> str:
    return hashlib.sha256(msgspec.json.encode(wanted, order="sorted")).hexdigest()
