"""Stop strings across token borders: nothing of one is let through, and nothing else is held longer than needed."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text goes in as it comes. The stop string that is complete first wins, however the text is cut.

    While `armed` is False a stop string may be completed without effect, but one that only began then still counts.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops))
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """What may be shown by now."""
        if self.matched is not None:
            return ""
        before = len(self._held)
        text = self._held + text
        # One that was completed in the held text came while it had no effect: only what ends in the new text counts.
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
        shown = len(text) - self._begun(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held back, when no more text can complete it."""
        text, self._held = self._held, ""
        return text

    def _begun(self, text: str) -> int:
        """The length of the longest end of `text` that a stop string begins with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
