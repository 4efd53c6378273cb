"""The Markdown of answers in the browser: what it becomes, and that pieces give the same as the whole."""

from __future__ import annotations

import random
import re

import pytest

from ui.conftest import Chat

pytestmark = pytest.mark.ui

RENDER = """async ([text, cuts]) => {
  const {MarkdownView} = await import(document.querySelector('link[rel=modulepreload][href$="markdown.js"]').href);
  const view = new MarkdownView();
  for (const cut of cuts) view.set(text.slice(0, cut), false);
  view.set(text, true);
  return view.node.innerHTML;
}"""

PIECES = (
    "# Title\n", "plain text", "\n", "\n\n", "**bold**", "*it*", "`code`", "- item\n", "  - inner\n", "1. one\n",
    "2. two\n", "- [x] done\n", "> quote\n", "```python\nx = 1\n", "```\n", "~~~\n", "| a | b |\n", "|:--|--:|\n",
    "| 1 | 2 |\n", "---\n", "[link](https://example.org)", "https://example.org/a.", "~~gone~~", "***", "_", "\\*",
    "$x^2$", "$$\n", "$$y$$", "\\(a_1\\)", "\\[", "\\]\n", "$5 ",
    "<b>", "    ", "\t", "é🎉", "\u0007", "![p](https://example.org/x.png)", "word_with_underscores", "2 * 3 * 4", "\r",
)  # fmt: skip


def rendered(chat: Chat, text: str, cuts: list[int] | None = None) -> str:
    return str(chat.page.evaluate(RENDER, [text, cuts or []]))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a **b** *c* `d` ~~e~~", "a <strong>b</strong> <em>c</em> <code>d</code> <del>e</del>"),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("***both***", "<strong><em>both</em></strong>"),
        ("a\\*b\\*", "a*b*"),
        ("<b>x</b> &amp;", "&lt;b&gt;x&lt;/b&gt; &amp;amp;"),
        ("``a ` b``", "<code>a ` b</code>"),
        ("one\ntwo", "one<br>two"),
    ],
)
def test_inline_marks(chat: Chat, text: str, html: str) -> None:
    assert rendered(chat, text) == f'<p dir="auto">{html}</p>'


def test_blocks(chat: Chat) -> None:
    assert rendered(chat, "## Two ##") == '<h4 class="h2" dir="auto">Two</h4>'
    assert rendered(chat, "---") == "<hr>"
    assert rendered(chat, "> a\nb") == '<blockquote><p dir="auto">a<br>b</p></blockquote>'
    inner = '<ul><li dir="auto">b</li></ul>'
    assert rendered(chat, "- a\n  - b\n- c") == f'<ul><li dir="auto">a{inner}</li><li dir="auto">c</li></ul>'
    assert rendered(chat, "3. a\n4. b") == '<ol start="3"><li dir="auto">a</li><li dir="auto">b</li></ol>'
    assert rendered(chat, "- a\n\n- b").count("<p dir") == 2
    assert rendered(chat, "1. a\n   ```\n   x\n   ```\n2. b").count("<li") == 2


def with_formulas(chat: Chat) -> None:
    """Until the library for formulas is there, as it is fetched with the first one."""
    chat.until(f"({RENDER})(['$x$', []]).then((html) => html.includes('<math'))")


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("so $x^2 + 1$ is", ["x^2 + 1"]),
        ("\\(a_1\\) and \\(a_2\\)", ["a_1", "a_2"]),
        ("$5 and $10, or US$ 3 and $HOME/$USER", []),
        ("\\$a\\$ and `$x$`", []),
        ("see\n$$\n\\frac{1}{2}\n$$\nend", ["\\frac{1}{2}"]),
        ("\\[\n\\int_0^1 x\\,dx\n\\]", ["\\int_0^1 x\\,dx"]),
        ("- one \\[y\\]\n- **two $z$**", ["y", "z"]),
        ("| $a$ | b |\n|---|---|\n| $\\alpha$ | c |", ["a", "\\alpha"]),
        ("```\n$x$\n```", []),
    ],
)
def test_formulas_and_what_is_none(chat: Chat, text: str, formulas: list[str]) -> None:
    with_formulas(chat)
    html = rendered(chat, text)
    assert re.findall('<math[^>]* aria-label="([^"]*)"', html) == formulas
    if not formulas:
        assert "formula" not in html


def test_a_formula_that_is_none_shows_its_source(chat: Chat) -> None:
    with_formulas(chat)
    for source in ("$\\frac{1}{$", "$$\\nothing{x}$$", "$\\href{javascript:alert(1)}{x}$", "$" + "x" * 5000 + "$"):
        html = rendered(chat, source)
        assert "<math" not in html
        assert source in html


def test_an_answer_with_a_formula_shows_it(chat: Chat) -> None:
    answer = chat.ask("Euler: $e^{i\\pi} = -1$")
    answer.locator("math").wait_for()
    assert answer.locator("math").get_attribute("aria-label") == "e^{i\\pi} = -1"


def test_text_in_pieces_becomes_the_same_as_at_once(chat: Chat) -> None:
    with_formulas(chat)
    for seed in range(60):
        rng = random.Random(seed)
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 40)))
        size = len(text.encode("utf-16-le")) // 2
        cuts = sorted(rng.sample(range(size), min(size, 30)))
        assert rendered(chat, text, cuts) == rendered(chat, text), f"seed {seed}: {text!r} at {cuts}"
