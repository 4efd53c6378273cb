"""Keys that are wrong, models that vanish and servers that restart: the page says so and recovers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.running import Process
from ui.conftest import Chat, Servers

pytestmark = pytest.mark.ui

At = Callable[[str], Chat]


def until_text(chat: Chat, selector: str, text: str) -> None:
    chat.page.locator(selector, has_text=text).first.wait_for()


def test_a_server_with_keys_asks_for_one_and_refuses_a_wrong_one(at: At, servers: Servers) -> None:
    with servers.frontend("--api-key", "right") as (frontend, url), servers.worker():
        frontend.line_with("model 'painter' can be served")
        chat = at(url)
        chat.expected = ("401",)
        chat.open()
        dialog = chat.page.get_by_role("dialog")
        dialog.get_by_label("API key").fill("wrong")
        chat.button("Use this key").click()
        until_text(chat, "#key-note", "refused")
        chat.button("Not now").click()
        until_text(chat, "#banner", "asks for a key")
        chat.button("Enter a key").click()
        dialog.get_by_label("API key").fill("right")
        chat.button("Use this key").click()
        chat.page.locator("#banner").wait_for(state="hidden")
        chat.page.get_by_label("Model", exact=True).select_option("talker")
        chat.ask("let in")
        assert chat.said() == ["let in"]
        chat.until("sessionStorage['dynamo.key'] === 'right' && localStorage['dynamo.key'] === undefined")
        chat.button("Settings").click()
        chat.page.get_by_label("Remember it in this browser; otherwise").check()
        chat.button("Close settings").click()
        chat.until("sessionStorage['dynamo.key'] === undefined && localStorage['dynamo.key'] === 'right'")
        chat.button("Show as curl or Python").click()
        assert "$DYNAMO_API_KEY" in chat.page.locator("#code-text").inner_text()
        assert "right" not in chat.page.locator("#code-text").inner_text()
        chat.button("Close code").click()
        chat.settings(API_key="changed")
        dialog.get_by_label("API key").wait_for()


def test_a_model_that_vanishes_mid_answer_is_named_and_its_answer_can_be_retried(at: At, servers: Servers) -> None:
    with servers.frontend() as (frontend, url):
        with servers.worker() as worker:
            chat = at(url).opened()
            chat.send("SLOW")
            chat.until("document.querySelector('.answer > .markdown')?.innerText.length > 3")
            kill(worker)
            chat.page.locator(".problem:visible").wait_for()
            chat.expected = ("404", "503")
        assert len(chat.said()[0]) > 3
        frontend.line_with("talker")
        until_text(chat, "#banner", "No model is served")
        chat.page.locator("select.model option", has_text="not served now").wait_for(state="attached")
        with servers.worker():
            chat.page.locator("select.model option", has_text="not served now").wait_for(state="detached")
            chat.ask("are you back?")
            assert chat.said()[-1] == "are you back?"


def test_a_server_that_restarts_is_found_again(at: At, servers: Servers) -> None:
    with servers.worker():
        with servers.frontend() as (frontend, url):
            chat = at(url).opened()
            chat.expected = ("ERR_",)
            chat.send("SLOW")
            chat.until("document.querySelector('.answer > .markdown')?.innerText.length > 3")
            kill(frontend)
            chat.page.locator(".problem:visible").wait_for()
            until_text(chat, "#banner", "cannot be reached")
        with servers.frontend(port=url.rpartition(":")[2]):
            chat.page.locator("#banner").wait_for(state="hidden")
            chat.ask("still there?")
            assert chat.said()[-1] == "still there?"


def test_an_engine_that_fails_is_quoted_and_the_question_stays(chat: Chat) -> None:
    chat.send("FAIL please")
    problem = chat.page.locator(".problem:visible")
    problem.wait_for()
    assert chat.page.locator(".message.user .bubble").inner_text() == "FAIL please"
    chat.complete()
    before = problem.inner_text()
    assert len(before) > len("Retry")
    chat.button("Retry", problem).click()
    chat.page.locator(".branches").first.wait_for()


def kill(process: Process) -> None:
    process.popen.kill()
    process.popen.wait()
