"""The page in a browser: every control, used as people use it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo.protocols.worker_name import worker_name
from support.toys import toy_folder
from ui.conftest import Chat, Servers

pytestmark = pytest.mark.ui

WEATHER = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'


def clipboard(chat: Chat) -> str:
    return str(chat.page.evaluate("navigator.clipboard.readText()"))


def test_an_answer_says_how_fast_it_was_and_which_worker_gave_it(chat: Chat) -> None:
    answer = chat.ask("PACED" + " one two three" * 20)
    assert chat.said() == ["PACED" + " one two three" * 20]
    facts = answer.locator(".stats").inner_text()
    for part in ("tokens/s", "first token", "tokens", "3 of ", "cached", "worker "):
        assert part in facts
    assert chat.page.title().startswith("PACED one two three")
    assert chat.page.title().endswith(" · Dynamo")


def test_an_answer_of_one_piece_has_no_speed(at: Callable[..., Any], url: str) -> None:
    chat = at(url).opened("painter")
    answer = chat.ask("a short answer")
    facts = answer.locator(".stats").inner_text()
    assert "first token" in facts
    assert "tokens/s" not in facts


def test_the_worker_under_an_answer_is_the_one_that_the_server_names(chat: Chat) -> None:
    instances = chat.page.request.get(chat.url + "/health").json()["instances"]
    names = {worker_name(one["instance_id"]) for one in instances}
    answer = chat.ask("hello")
    assert answer.locator(".worker").inner_text().removeprefix("worker ") in names


@pytest.mark.parametrize("way", ["button", "key"])
def test_a_stopped_answer_keeps_what_has_come(chat: Chat, way: str) -> None:
    chat.send("SLOW")
    chat.until("document.querySelector('.answer > .markdown')?.innerText.length > 3")
    chat.button("Stop").click() if way == "button" else chat.page.keyboard.press("Escape")
    answer = chat.complete()
    assert len(chat.said()[0]) > 3
    assert "stopped" in answer.locator(".stats").inner_text()


def test_a_retried_answer_is_a_version_beside_the_first(chat: Chat) -> None:
    answer = chat.ask("again")
    chat.button("Retry", answer).click()
    answer = chat.complete()
    assert answer.locator(".branches").inner_text() == "2/2"
    chat.button("Previous version", answer).click()
    assert chat.answers.last.locator(".branches").inner_text() == "1/2"
    assert chat.button("Previous version", chat.answers.last).is_disabled()
    chat.button("Next version", chat.answers.last).click()
    assert chat.answers.last.locator(".branches").inner_text() == "2/2"


def test_an_edited_question_is_a_branch_and_the_old_one_stays(chat: Chat) -> None:
    chat.ask("first")
    chat.ask("second")
    question = chat.page.locator(".message.user").first
    question.hover()
    chat.button("Edit", question).click()
    chat.button("Cancel", question).click()
    chat.button("Edit", question).click()
    question.get_by_label("Edit message").fill("other")
    chat.button("Send", question).click()
    chat.until("document.querySelectorAll('.answer').length === 1")
    chat.complete()
    assert chat.said() == ["other"]
    chat.button("Previous version").click()
    assert chat.said() == ["first", "second"]


def test_settings_are_part_of_the_request(chat: Chat) -> None:
    chat.settings(
        System_prompt="Be brief.", Temperature="0.5", Top_p="0.9", Top_k="5", Longest_answer="2", Seed="7",
        Frequency_penalty="0.1", Presence_penalty="0.2", Stop_at="END\nFIN", More_fields='{"min_p": 0.05}',
    )  # fmt: skip
    chat.button("Settings").click()
    chat.page.locator("select[name=reasoning_effort]").select_option("low")
    chat.page.keyboard.press("Escape")
    body = chat.request_of(lambda: chat.send("one two three four"))
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    wanted: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 2,
        "seed": 7,
        "frequency_penalty": 0.1,
    }
    wanted |= {"presence_penalty": 0.2, "stop": ["END", "FIN"], "min_p": 0.05, "reasoning_effort": "low"}
    assert {name: body[name] for name in wanted} == wanted
    assert "cut at the limit" in chat.complete().locator(".stats").inner_text()
    chat.button("New chat").click()
    assert chat.request_of(lambda: chat.send("x"))["temperature"] == 0.5


def test_reasoning_is_folded(chat: Chat) -> None:
    answer = chat.ask("THINK done")
    assert chat.said() == ["done"]
    thought = answer.locator(".reasoning .markdown")
    assert not thought.is_visible()
    answer.get_by_text("Reasoning").click()
    thought.get_by_text("Let me see.").wait_for()


def test_a_tool_call_is_answered_by_hand(chat: Chat) -> None:
    chat.settings(**{"Tools_(JSON": WEATHER})
    chat.button("Settings").click()
    chat.page.get_by_label("Tool choice").select_option("none")
    chat.page.get_by_label("Tool choice").select_option("auto")
    chat.button("Close settings").click()
    answer = chat.ask('CALL weather {"city": "Lyon"}')
    assert answer.locator(".call .name").inner_text() == "weather"
    assert json.loads(answer.locator(".call code").inner_text()) == {"city": "Lyon"}
    answer.get_by_label("Result of weather").fill("sunny <b>and</b> warm")
    body = chat.request_of(chat.button("Send result", answer).click)
    chat.until("document.querySelectorAll('.answer').length === 2")
    chat.complete()
    assert body["messages"][-1]["content"] == "sunny <b>and</b> warm"
    assert body["messages"][-2]["tool_calls"][0]["id"] == body["messages"][-1]["tool_call_id"]
    assert chat.said()[-1] == "The tool said: sunny <b>and</b> warm"


def test_wrong_tools_are_named_and_nothing_is_lost(chat: Chat) -> None:
    chat.button("Settings").click()
    chat.page.get_by_label("Tools (JSON").fill("[{]")
    assert chat.page.locator("#settings-problem").inner_text().startswith("Tools: ")
    chat.button("Close settings").click()
    chat.send("keep me")
    chat.page.get_by_text("keep me").first.wait_for()
    assert chat.page.locator("#toast").inner_text().startswith("Tools: ")


def test_the_request_as_curl_answers(chat: Chat) -> None:
    chat.ask('it\'s "quoted" $HOME')
    chat.button("Show as curl or Python").click()
    chat.button("Copy", chat.page.locator("#code-text")).click()
    line = clipboard(chat)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == 'it\'s "quoted" $HOME'
    chat.page.keyboard.press("Escape")


def test_the_request_as_python_is_python(chat: Chat) -> None:
    chat.settings(Temperature="0.25")
    chat.type("a draft\nwith 'quotes'")
    chat.button("Show as curl or Python").click()
    chat.page.get_by_role("tab", name="Python").click()
    code = chat.page.locator("#code-text code").inner_text()
    compile(code, "snippet", "exec")
    assert "\"a draft\\nwith 'quotes'\"" in code
    assert "temperature=0.25" in code
    chat.page.get_by_role("tab", name="Python").press("ArrowLeft")
    assert chat.page.get_by_role("tab", name="curl").get_attribute("aria-selected") == "true"
    chat.button("Close code").click()


def test_two_models_answer_side_by_side(chat: Chat) -> None:
    chat.ask("first")
    chat.button("Compare two models").click()
    assert chat.page.get_by_label("Second model").input_value() == "painter"
    chat.send("both")
    chat.until("document.querySelectorAll('.answer').length === 4")
    chat.complete()
    assert chat.said() == ["first", "both", "first", "both"]
    lanes = chat.page.locator(".lane")
    assert [lanes.nth(at).locator(".who").last.inner_text() for at in range(2)] == ["talker", "painter"]
    chat.page.get_by_label("Second model").select_option("talker")
    chat.page.locator("#compare").click()
    assert chat.said() == ["first", "both"]


def test_pictures_go_to_models_that_take_them(chat: Chat, tmp_path: Path) -> None:
    picture = tmp_path / "one.png"
    chat.page.screenshot(path=picture)
    assert not chat.page.get_by_role("button", name="Add pictures").is_visible()
    chat.page.get_by_label("Model", exact=True).select_option("painter")
    add = chat.button("Add pictures")
    add.wait_for()
    with chat.page.expect_file_chooser() as chooser:
        add.click()
    chooser.value.set_files([picture, picture])
    chat.button("Remove picture 2").click()
    body = chat.request_of(chat.button("Send").click)
    (part,) = body["messages"][-1]["content"]
    assert part["image_url"]["url"].startswith("data:image/png;base64,")
    chat.complete()
    assert chat.said() == ["1 pictures"]
    assert chat.page.get_by_alt_text("Picture 1 you sent").is_visible()


def test_conversations_are_kept_found_renamed_and_deleted(chat: Chat) -> None:
    chat.ask("about cats")
    chat.button("New chat").click()
    chat.ask("about dogs")
    chat.page.reload()
    chat.page.wait_for_selector("body[data-ready]")
    assert chat.said() == ["about dogs"]
    entries = chat.page.locator(".entry .open")
    assert entries.all_inner_texts() == ["about dogs", "about cats"]
    chat.page.get_by_label("Search conversations").fill("CATS")
    assert entries.all_inner_texts() == ["about cats"]
    entries.first.click()
    assert chat.said() == ["about cats"]
    chat.page.get_by_label("Search conversations").fill("")
    chat.page.locator(".entry", has_text="cats").hover()
    chat.button("Rename about cats").click()
    chat.page.get_by_label("Title").fill("felines")
    chat.page.keyboard.press("Enter")
    chat.page.locator(".entry", has_text="felines").hover()
    chat.button("Delete felines").click()
    chat.button("Cancel").click()
    chat.button("Delete felines").click()
    chat.button("Delete").click()
    chat.page.locator(".entry", has_text="felines").wait_for(state="detached")
    assert entries.all_inner_texts() == ["about dogs"]


def test_conversations_are_exported_and_imported(chat: Chat, tmp_path: Path) -> None:
    chat.ask("take me with you")
    chat.page.locator(".entry").hover()
    with chat.page.expect_download() as one:
        chat.button("Export take me with you").click()
    one.value.save_as(tmp_path / "one.json")
    chat.button("Settings").click()
    with chat.page.expect_download() as everything:
        chat.button("Export all").click()
    everything.value.save_as(tmp_path / "all.json")
    assert (tmp_path / "all.json").read_text() == (tmp_path / "one.json").read_text()
    chat.button("Delete all").click()
    chat.page.locator("#question").get_by_role("button", name="Delete all").click()
    chat.page.locator(".entry").wait_for(state="detached")
    (tmp_path / "wrong.json").write_text('{"format": "dynamo-conversations", "conversations": [{"id": 1}]}')
    for file, notice in (
        ("wrong.json", "The conversations of this file are damaged."),
        ("all.json", "1 conversation imported"),
    ):
        with chat.page.expect_file_chooser() as chooser:
            chat.button("Import").click()
        chooser.value.set_files(tmp_path / file)
        chat.page.locator("#toast", has_text=notice).wait_for()
    chat.button("Close settings").click()
    chat.page.locator(".entry .open").click()
    assert chat.said() == ["take me with you"]


def test_messages_answers_and_code_are_copied(chat: Chat) -> None:
    answer = chat.ask("```python\nprint(1)\n```\ntext")
    assert answer.locator("code .t-call").inner_text() == "print"
    chat.button("Copy", answer).click()
    assert clipboard(chat) == "print(1)"
    chat.button("Copy answer", answer).click()
    assert clipboard(chat).endswith("```\ntext")
    chat.page.locator(".message.user").hover()
    chat.button("Copy message").click()
    assert clipboard(chat).startswith("```python")


def test_the_keyboard_is_enough(chat: Chat) -> None:
    keys = chat.page.keyboard
    chat.type("line one")
    keys.press("Shift+Enter")
    keys.type("line two")
    keys.press("Enter")
    chat.page.wait_for_selector(".answer")
    chat.complete()
    assert chat.said() == ["line one\nline two"]
    keys.press("ArrowUp")
    area = chat.page.get_by_label("Edit message")
    assert area.input_value() == "line one\nline two"
    keys.press("Escape")
    chat.page.locator("#scroller").focus()
    keys.press("/")
    chat.until("document.activeElement.id === 'prompt'")
    keys.press("Alt+s")
    assert not chat.page.locator("#sidebar").is_visible()
    keys.press("Alt+s")
    keys.press("Alt+n")
    assert chat.said() == []


def test_the_sidebar_is_a_drawer_on_a_phone(chat: Chat) -> None:
    chat.ask("small")
    chat.button("Hide conversations").first.click()
    chat.button("Show conversations").click()
    chat.page.set_viewport_size({"width": 390, "height": 844})
    sidebar = chat.page.locator("#sidebar")
    sidebar.wait_for(state="hidden")
    chat.button("Show conversations").click()
    sidebar.get_by_text("small").click()
    sidebar.wait_for(state="hidden")
    chat.button("Show conversations").click()
    chat.page.locator("#scrim").click(position={"x": 380, "y": 400})
    sidebar.wait_for(state="hidden")


def test_the_theme_stays_as_chosen(chat: Chat) -> None:
    for theme in ("dark", "light"):
        chat.button("Settings").click()
        chat.page.get_by_label("Theme").select_option(theme)
        chat.button("Close settings").click()
        chat.page.reload()
        chat.page.wait_for_selector("body[data-ready]")
        assert chat.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == theme


def test_a_long_answer_is_followed_until_the_reader_scrolls(chat: Chat) -> None:
    chat.ask("\n\n".join(f"Paragraph {number}" for number in range(60)))
    at_end = "document.getElementById('scroller').scrollTop + document.getElementById('scroller').clientHeight"
    chat.until(f"{at_end} >= document.getElementById('scroller').scrollHeight - 2")
    chat.page.locator("#scroller").hover()
    chat.page.mouse.wheel(0, -2000)
    chat.button("To the end").click()
    chat.until(f"{at_end} >= document.getElementById('scroller').scrollHeight - 2")


def test_an_answer_that_was_interrupted_by_leaving_is_kept(chat: Chat) -> None:
    chat.send("SLOW")
    chat.until("document.querySelector('.answer > .markdown')?.innerText.length > 3")
    chat.page.reload()
    chat.page.wait_for_selector("body[data-ready]")
    assert chat.page.locator(".message.user").inner_text().strip() == "SLOW"
    chat.button("Retry").first.wait_for()


@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_nothing_is_wider_than_the_screen(chat: Chat, width: int) -> None:
    chat.page.set_viewport_size({"width": width, "height": 900})
    chat.ask("```\n" + "x" * 500 + "\n```\n\n| a | b |\n|---|---|\n| " + "wide " * 80 + " | 2 |\n\n" + "y" * 500)
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= width
    assert chat.page.evaluate(
        "document.getElementById('scroller').scrollWidth <= document.getElementById('scroller').clientWidth"
    )


def test_models_that_do_not_chat_are_not_offered(chat: Chat) -> None:
    listed = chat.page.request.get(chat.url + "/v1/models").json()["data"]
    assert {model["id"] for model in listed} == {"embedder", "painter", "talker"}
    assert chat.page.locator("select.model option").all_inner_texts() == ["painter", "talker"]


def test_a_conversation_longer_than_the_context_goes_on_without_its_oldest_turns(
    at: Callable[..., Any], tmp_path: Path
) -> None:
    servers = Servers(tmp_path, toy_folder(tmp_path / "short"))
    with servers.frontend() as (frontend, url), servers.worker():
        frontend.line_with("model 'painter' can be served")
        chat = at(url).opened()
        chat.expected = ("400",)
        words = "one two three four five six seven eight " * 20
        for number in range(8):
            answer = chat.ask(f"{number} {words}")
            assert chat.said()[-1].startswith(str(number))
        assert "of the context" in answer.locator(".stats").inner_text()
        assert "oldest messages" in answer.locator(".stats").inner_text()
        answer = chat.ask("x" * 20_000)
        assert "context" in answer.locator(".problem").inner_text()


def test_the_page_leads_to_the_fleet(chat: Chat) -> None:
    chat.page.get_by_role("link", name="Fleet").click()
    chat.page.wait_for_url(chat.url + "/fleet")
