"""Content that wants to be more than text: nothing of it runs, and the page goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ui.conftest import Chat

pytestmark = pytest.mark.ui

ATTACKS = (
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    "<svg onload=window.hurt=1>",
    "<iframe srcdoc='<script>parent.hurt=1</script>'></iframe>",
    "[click](javascript:window.hurt=1)",
    "[click](  JaVaScRiPt:window.hurt=1)",
    "[click](data:text/html,<script>window.hurt=1</script>)",
    "![x](javascript:window.hurt=1)",
    "![x](https://example.org/spy.png)",
    "<javascript:window.hurt=1>",
    "`<script>window.hurt = 1</script>`",
    "```html\n<script>window.hurt = 1</script>\n```",
    "| <script>window.hurt = 1</script> | b |\n|---|---|\n| <img src=x onerror=window.hurt=1> | \"onclick=\"hurt=1 |",
    "\u0000\u0007\u001b[31mred\u202eevil\u2066\ufeff\ud7ff",
    "[" * 3000 + "x" + "]" * 3000,
    "*" * 5000 + "a" + "_" * 5000 + "`" * 4999,
    "> " * 3000 + "deep",
    "- " * 3000 + "deep",
    "|" * 5000 + "\n" + "|-" * 2500 + "\n" + "|" * 5000,
)  # fmt: skip


def stream(*deltas: dict[str, Any]) -> str:
    """A stream of chat chunks, as a server would send it."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def answer_with(chat: Chat, body: str) -> None:
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


IS_UNHURT = """() => {
  const within = (selector) => [...document.querySelectorAll(`.message ${selector}`)];
  const hasHandler = (one) => [...one.attributes].some((attribute) => attribute.name.startsWith("on"));
  return window.hurt === undefined
    && !within(":is(script, iframe, object, embed, form:not(.results), link, style)").length
    && !within("*").some(hasHandler)
    && !within("a[href]").some((one) => !/^(https?|mailto):/.test(one.href))
    && !within("img").some((one) => !one.src.startsWith("data:"));
}"""


def is_unhurt(chat: Chat) -> bool:
    """No script has run, and no node in a message could run one or load something from elsewhere."""
    return bool(chat.page.evaluate(IS_UNHURT))


def test_hostile_markdown_stays_text(chat: Chat) -> None:
    for attack in ATTACKS:
        answer_with(chat, stream({"content": attack}))
        chat.ask(attack)
        assert is_unhurt(chat), attack
    assert "\u202e" not in chat.page.locator("#lanes").inner_text()


def test_a_hostile_stream_in_single_characters_stays_text(chat: Chat) -> None:
    text = "\n\n".join(ATTACKS[:13])
    answer_with(chat, stream(*({"content": character} for character in text)))
    chat.ask("go")
    assert is_unhurt(chat)
    assert "<script>window.hurt = 1</script>" in chat.said()[0]


def test_hostile_names_arguments_and_reasoning_stay_text(chat: Chat) -> None:
    name, arguments = "<img src=x onerror=window.hurt=1>" * 100, '{"a": "<script>window.hurt=1</script>'
    call = {"index": 0, "id": "<b>1</b>", "function": {"name": name, "arguments": arguments}}
    answer_with(chat, stream({"reasoning_content": "<script>window.hurt=1</script>"}, {"tool_calls": [call]}))
    answer = chat.ask("go")
    answer.get_by_text("Reasoning").click()
    answer.locator(".reasoning .markdown", has_text="<script>").wait_for()
    assert arguments in answer.locator(".call code").inner_text()
    assert is_unhurt(chat)


def test_hostile_model_names_stay_text(chat: Chat) -> None:
    names = ["<script>window.hurt=1</script>", "\u0000\u202e\"'><img src=x onerror=window.hurt=1>", "long" * 250_000]
    listing = {"object": "list", "data": [{"id": name, "created": 1, "owned_by": "x"} for name in names]}
    chat.page.route("**/v1/models", lambda route: route.fulfill(json=listing))
    chat.expected = ("404", "413", "400")
    chat.button("New chat").click()
    chat.page.evaluate("window.dispatchEvent(new Event('online'))")
    box = chat.page.get_by_label("Model", exact=True)
    chat.page.locator("select.model option", has_text="onerror").wait_for(state="attached")
    answer_with(chat, stream({"content": "fine"}))
    for at in range(3):
        box.select_option(index=at)
        chat.ask("hello")
        assert is_unhurt(chat)
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize("kind", ["words", "letters", "code", "items"])
def test_a_megabyte_in_one_line_is_shown(chat: Chat, kind: str) -> None:
    line = {
        "words": "word " * 200_000,
        "letters": "x" * 1_000_000,
        "code": "```\n" + "x" * 1_000_000 + "\n```",
        "items": "- " + "x" * 1_000_000,
    }[kind]
    answer_with(chat, stream(*({"content": line[at : at + 50_000]} for at in range(0, len(line), 50_000))))
    chat.ask("go")
    assert len(chat.page.locator(".answer > .markdown").text_content() or "") >= 999_000
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 1280
    chat.page.unroute("**/v1/chat/completions")
    chat.button("New chat").click()
    chat.ask("and on")
    assert chat.said() == ["and on"]


@pytest.mark.parametrize(
    "body", ["data: {\n\n", "data: [1\n\ndata: [DONE]\n\n", "", "data: null\n\n", ": \n\nevent: x\n\n"]
)
def test_a_broken_stream_is_said_to_be_one(chat: Chat, body: str) -> None:
    answer_with(chat, body)
    chat.send("go")
    chat.page.locator(".problem:visible").wait_for()
    chat.page.unroute("**/v1/chat/completions")
    chat.button("Retry", chat.page.locator(".problem:visible")).click()
    chat.complete()
    assert chat.said() == ["go"]


def test_an_imported_file_cannot_bring_markup(chat: Chat, tmp_path: Any) -> None:
    node = {
        "id": "a",
        "parent": "a",
        "role": "user",
        "text": ATTACKS[1],
        "images": ["javascript:1", "https://example.org/spy.png"],
    }
    wild = {
        "id": ATTACKS[1],
        "title": ATTACKS[1],
        "nodes": {"a": node, "b": None, "c": {"id": 3}},
        "lanes": [{"leaf": "a"}],
    }
    file = tmp_path / "wild.json"
    file.write_text(json.dumps({"format": "dynamo-conversations", "conversations": [wild]}))
    chat.button("Settings").click()
    with chat.page.expect_file_chooser() as chooser:
        chat.button("Import").click()
    chooser.value.set_files(file)
    chat.page.locator("#toast", has_text="imported").wait_for()
    chat.button("Close settings").click()
    chat.page.locator(".entry .open").click()
    assert chat.page.locator(".bubble").inner_text() == ATTACKS[1]
    assert is_unhurt(chat)
