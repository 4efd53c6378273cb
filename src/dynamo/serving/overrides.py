"""Busy thresholds set at run time, by model, whether or not the model is served at the moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from msgspec import Struct


class Override(Struct, frozen=True, array_like=True):
    """One threshold of one model, with the time and the process that set it."""

    model: str
    field: str
    value: int | float
    at: int
    process: int

    @property
    def version(self) -> tuple[int, int]:
        return self.at, self.process


class Overrides:
    """The newest value wins wherever processes compare theirs, so that all of them end up with the same."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._newest: dict[tuple[str, str], Override] = {}

    def set(self, model: str, values: Mapping[str, int | float]) -> None:
        now = time.time_ns()
        self.merge(Override(model, field, value, now, self._process) for field, value in values.items())

    def merge(self, others: Iterable[Override]) -> None:
        for one in others:
            known = self._newest.get((one.model, one.field))
            if known is None or known.version < one.version:
                self._newest[one.model, one.field] = one

    def of(self, model: str) -> dict[str, int | float]:
        return {field: one.value for (name, field), one in self._newest.items() if name == model}

    def all(self) -> list[Override]:
        return list(self._newest.values())
