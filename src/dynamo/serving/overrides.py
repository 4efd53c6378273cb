"""Thresholds set over HTTP, by model name, whether or not the model is served at the moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from msgspec import Struct


class Override(Struct, frozen=True, array_like=True):
    """One threshold of one model: the value, and when and by which process it was set."""

    model: str
    field: str
    value: int | float | None
    at: int
    process: int

    @property
    def version(self) -> tuple[int, int]:
        return self.at, self.process


class Overrides:
    """Processes exchange their overrides; the newest wins, so all converge on the same."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._newest: dict[tuple[str, str], Override] = {}

    def set(self, model: str, values: Mapping[str, int | float | None]) -> None:
        # Later than what it replaces, also when the clock was set back.
        now = max(time.time_ns(), 1 + max((known.at for known in self._newest.values()), default=0))
        self.merge(Override(model, field, value, now, self._process) for field, value in values.items())

    def merge(self, overrides: Iterable[Override]) -> None:
        for override in overrides:
            key = (override.model, override.field)
            known = self._newest.get(key)
            if known is None or known.version < override.version:
                self._newest[key] = override

    def of(self, model: str) -> dict[str, int | float | None]:
        return {field: override.value for (name, field), override in self._newest.items() if name == model}

    def all(self) -> list[Override]:
        return list(self._newest.values())
