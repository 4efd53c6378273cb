"""Separates reasoning between markers from the content after it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .events import ThoughtText
from .source import Reading, Source, marker_search


class ThinkingMarkers(Struct, frozen=True, kw_only=True):
    """`always` is for models whose prompt opens the reasoning, so that the output only closes it.

    `interrupts` are markers of what follows the reasoning: they end it too if the model did not close it. With
    `skippable`, the closing marker at the start of the output means that there is no reasoning. Markers in `ignored`
    are left out of the content.
    """

    open: tuple[str, ...]
    close: tuple[str, ...]
    always: bool = False
    interrupts: tuple[str, ...] = ()
    skippable: bool = False
    ignored: tuple[str, ...] = ()


def read_thinking(
    src: Source, thinking: ThinkingMarkers, inside: bool, guided: tuple[str, ...], reasoning: Callable[[str], None]
) -> Reading[None]:
    """Reads up to the end of the reasoning; the rest of `src` is content.

    The marker counts only at the start: later, an answer may mention it. Output that begins with one of `guided` has no
    reasoning, even if the prompt opened it: most engines constrain output from its first token on.
    """
    yield from src.skip_space()
    opened = yield from src.one_of(thinking.open)
    if not opened and (not inside or (yield from src.one_of(guided))):
        if not inside and thinking.skippable and (yield from src.one_of(thinking.close)):
            yield from src.skip_space()
            src.drop()
        src.pos = 0
        return
    yield from src.skip_space()
    src.drop()
    search = marker_search((*thinking.close, *thinking.interrupts))
    while True:
        found = search(src.buf)
        src.pos = found.start() if found else len(src.buf)
        reasoning(src.buf[: src.pos])
        src.drop()
        if found and found[0] in thinking.interrupts:
            return
        if found and found[0] in thinking.close:
            src.pos = len(found[0])
            yield from src.skip_space()
            src.drop()
            return
        if src.ended:
            reasoning(src.buf)
            src.buf = ""
            return
        yield None if found else (search, ThoughtText)
