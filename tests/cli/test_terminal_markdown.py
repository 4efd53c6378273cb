"""Markdown as a terminal shows it."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.chat.markdown import MarkdownStream, without_controls

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def shown(*pieces: str) -> str:
    stream = MarkdownStream()
    return "".join(map(stream.feed, pieces)) + stream.finish()


def bare(text: str) -> str:
    return ESCAPE.sub("", text)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("# Title\ntext", "Title\ntext"),
        ("#hashtag", "#hashtag"),
        ("- one\n- two\n  * three", "• one\n• two\n  • three"),
        ("**bold** and *soft* and ***both***", "bold and soft and both"),
        ("2 * 3 * 4 = 24", "2 * 3 * 4 = 24"),
        ("2*3*4", "2*3*4"),
        ("a ** b", "a ** b"),
        ("x = `a * b` done", "x = a * b done"),
        ("> quoted", "│ quoted"),
        ("before\n```python\nprint('**')\n```\nafter", "before\n  print('**')\nafter"),
        ("```nosuchlanguage\n<b>\n```\n", "  <b>\n"),
        ("~~~\nx\n```\n~~~\ny", "  x\n  ```\ny"),
        ("```\nnever closed", "  never closed"),
        ("```\nclosed at the end\n```", "  closed at the end\n"),
        ("~~~\nx\n~~~ ", "  x\n"),
        ("--- rule", "--- rule"),
        ("****", "****"),
        ("ends with **", "ends with **"),
        ("-", "-"),
        ("", ""),
    ],
)
def test_markdown_is_shown_without_its_marks(text: str, seen: str) -> None:
    assert bare(shown(text)) == seen


def test_styles_do_not_outlive_their_line() -> None:
    assert shown("**open\nnext") == "\x1b[0m\x1b[1mopen\x1b[0m\nnext"
    assert shown("`open").endswith("\x1b[0m")


def test_code_is_coloured() -> None:
    assert "\x1b[" in shown("```python\nimport this\n```")


def test_a_model_cannot_reach_the_terminal() -> None:
    assert without_controls("a\x1b[2J\x07\x9b1mb\r\x00c\n\td") == "a[2J1mbc\n\td"
    assert "\x1b]0;" not in shown("\x1b]0;title\x07")


MARKS = st.text(st.sampled_from("*`#->~ \nab12\x1b."), max_size=40)


@given(MARKS, st.lists(st.integers(0, 40), max_size=6))
def test_how_the_text_was_cut_cannot_be_seen(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert shown(*pieces) == shown(text)


@given(MARKS)
def test_no_word_is_lost(text: str) -> None:
    kept = [character for character in bare(shown(text)) if character in "ab12."]
    fences = re.compile(r"^ {0,3}(?:```+|~~~+).*$", re.MULTILINE)
    told = [character for character in fences.sub("", text) if character in "ab12."]
    assert set(told) <= set(kept)
