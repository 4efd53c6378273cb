"""Finds stop strings in streamed text, even where one spans several tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back text only while it may be the beginning of a stop string. The one that completes first matches.

    A stop string that completes while `armed` is False has no effect, but one that begins then may match later.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops))
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Returns the text that can be shown now."""
        if self.matched is not None:
            return ""
        before = len(self._held)
        text = self._held + text
        # A stop string that ends within the held text completed while not armed: only look for ends in the new text.
        complete = [
            (start + len(stop), start)
            for stop in self._stops
            if armed and (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if complete:
            end, start = min(complete)
            self.matched = text[start:end]
            self._held = ""
            return text[: end if self._include else start]
        shown = len(text) - self._partial(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Returns the text held back, at the end of the stream."""
        text, self._held = self._held, ""
        return text

    def _partial(self, text: str) -> int:
        """The length of the longest suffix of `text` that is a prefix of a stop string."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
