"""Separates reasoning between markers from the content after it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .events import ReasoningText
from .source import Reading, Source, pass_on


class ReasoningMarkers(Struct, frozen=True, kw_only=True):
    """`starts_inside` is for models whose prompt opens the reasoning, so that the output only closes it.

    `interrupts` are markers of what follows the reasoning: they end it if the model did not close it. With `skippable`,
    output that begins with the closing marker has no reasoning. Markers in `ignored` are left out of the content.
    """

    open: tuple[str, ...]
    close: tuple[str, ...]
    starts_inside: bool = False
    interrupts: tuple[str, ...] = ()
    skippable: bool = False
    ignored: tuple[str, ...] = ()


def read_reasoning(
    src: Source,
    markers: ReasoningMarkers,
    inside: bool,
    guided_starts: tuple[str, ...],
    reasoning: Callable[[str], None],
) -> Reading[None]:
    """Read up to the end of the reasoning; the rest of `src` is content.

    The opening marker counts only at the start: later, an answer may mention it. Output that begins with one of
    `guided_starts` has no reasoning, even if the prompt opened it: most engines constrain output from its first token.
    """
    yield from src.skip_space()
    opened = yield from src.one_of(markers.open)
    if not opened and (not inside or (yield from src.one_of(guided_starts))):
        if not inside and markers.skippable and (yield from src.one_of(markers.close)):
            yield from src.skip_space()
            src.drop()
        src.pos = 0
        return
    yield from src.skip_space()
    src.drop()
    marker = yield from pass_on(src, (*markers.close, *markers.interrupts), reasoning, ReasoningText)
    if marker in markers.close:
        src.pos = len(marker)
        yield from src.skip_space()
        src.drop()
