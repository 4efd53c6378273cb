from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dynamo.pipeline.stops import StopStrings

ALPHABET = "abc\n"


def run(stops: list[str], pieces: list[str], *, include: bool = False) -> tuple[str, str | None]:
    filter = StopStrings(stops, include=include)
    shown = "".join(filter.push(piece) for piece in pieces)
    if filter.matched is None:
        shown += filter.flush()
    return shown, filter.matched


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """The reference, character by character: the first stop string to complete, the longest if several do at once."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


texts = st.text(ALPHABET, max_size=30)
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3)


@given(stop_lists, texts, st.lists(st.integers(0, 30), max_size=6))
def test_the_result_does_not_depend_on_how_the_text_is_cut(stops: list[str], text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert run(stops, pieces) == expected(stops, text)


@given(stop_lists, texts)
def test_nothing_of_a_stop_string_is_ever_shown(stops: list[str], text: str) -> None:
    shown, matched = run(stops, list(text))
    assert not any(stop in shown for stop in stops)
    assert (matched is None) == (shown == text)


def test_an_included_stop_string_is_shown_whole() -> None:
    assert run(["END"], ["the E", "N", "D of it"], include=True) == ("the END", "END")


def test_a_partial_stop_string_comes_out_at_the_end() -> None:
    assert run(["\n\nUser:"], ["hello\n", "\nUse"]) == ("hello\n\nUse", None)
