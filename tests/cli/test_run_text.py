"""in=text on a real terminal (a pseudo-terminal, with keys pressed and signals sent by it)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from support.running import RUN, environment, run, running
from support.waiting import PATIENCE

CTRL_C, CTRL_D, UP, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\x1b\r"
Start = Callable[..., "Chat"]


class Chat:
    """Somebody at a terminal."""

    def __init__(self, place: Path, *words: str, program: list[str] | None = None, **env: str) -> None:
        command = [*(program or RUN), *words]
        self.place = place
        self.terminal = pexpect.spawn(
            command[0],
            command[1:],
            cwd=str(place),
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=(30, 80),
            env=environment(place, PROMPT_TOOLKIT_NO_CPR="1", LANG="C.UTF-8", **env),
        )

    def ready(self) -> Chat:
        """Wait for the prompt: drawn, pasting switched on, the cursor shown."""
        self.sees("\x1b[?2004h")
        self.sees("\x1b[?25h")
        return self

    def sees(self, text: str) -> None:
        self.terminal.expect_exact(text)

    def types(self, text: str) -> None:
        self.terminal.send(text)

    def says(self, text: str, answer: str | None = None) -> None:
        """Type a line and read its answer."""
        self.types(text + "\r")
        self.sees("\r\n")
        if answer is not None:
            self.sees(answer)
            self.ready()

    def saved(self) -> list[tuple[str, str]]:
        """The conversation so far, as the chat keeps it."""
        file = self.place / f"saved-{len(list(self.place.glob('saved-*')))}.json"
        self.says(f"/save {file.name}", "saved to")
        return [(turn["role"], turn["content"]) for turn in json.loads(file.read_text())["messages"]]

    def leaves(self) -> int | None:
        self.terminal.expect(pexpect.EOF)
        self.terminal.close()
        return self.terminal.exitstatus

    def close(self) -> None:
        self.terminal.close(force=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    chats = []

    def begin(*words: str, **options: Any) -> Chat:
        chat = Chat(tmp_path, *words, **options)
        chats.append(chat)
        return chat

    yield begin
    for chat in chats:
        chat.close()


def test_a_chat_over_three_turns(start: Start) -> None:
    chat = start("out=echo")
    chat.sees("loading echo_full")
    chat.ready()
    chat.says("first words", "first words")
    chat.says("second ones", "second ones")
    chat.says("and third", "and third")
    turns = chat.saved()
    assert turns == [
        ("user", "first words"),
        ("assistant", "first words"),
        ("user", "second ones"),
        ("assistant", "second ones"),
        ("user", "and third"),
        ("assistant", "and third"),
    ]
    chat.types(CTRL_D)
    assert chat.leaves() == 0


def test_a_question_moves_to_another_worker_as_often_as_it_may(
    start: Start, tmp_path: Path, dies_once: tuple[str, ...]
) -> None:
    with running(tmp_path, *dies_once) as one, running(tmp_path, *dies_once) as other:
        one.line_with("worker for 'm'")
        other.line_with("worker for 'm'")
        chat = start("out=dyn", "--migration-limit", "1").ready()
        chat.says("hello", "answered")
        chat.types(CTRL_D)
        assert chat.leaves() == 0


def test_the_whole_conversation_is_sent_each_time(start: Start, model: Path) -> None:
    chat = start("out=echo_core", str(model)).ready()
    chat.says("/system Be brief.", "Be brief.")
    chat.says("one", "assistant")
    chat.says("/clear", "forgotten")
    chat.says("two", "assistant")
    assert chat.saved()[-1] == (
        "assistant",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n",
    )


def test_ctrl_c_stops_an_answer_and_a_second_one_leaves(start: Start) -> None:
    chat = start("out=echo", DYN_TOKEN_ECHO_DELAY_MS="150").ready()
    text = "abcdefghijklmnopqrstuvwxyz" * 2
    chat.says(text)
    chat.sees("abc")
    chat.types(CTRL_C)
    chat.sees("(stopped)")
    chat.ready()
    said = chat.saved()[1][1]
    assert text.startswith(said)
    assert 0 < len(said) < len(text)
    chat.says("next", "next")
    chat.says(text)
    chat.sees("abc")
    chat.types(CTRL_C)
    chat.sees("(stopped)")
    chat.ready()
    chat.types(CTRL_C)
    assert chat.leaves() == 0


def test_two_ctrl_c_at_the_prompt_leave(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.types(CTRL_C)
    chat.sees("Ctrl-C again")
    chat.ready()
    chat.types(CTRL_C)
    assert chat.leaves() == 0


def test_ctrl_c_clears_a_half_typed_line(start: Start) -> None:
    chat = start("out=echo").ready()
    for _ in range(2):
        chat.types("never mind")
        chat.sees("never mind")
        chat.types(CTRL_C)
        chat.ready()
    chat.says("hello", "hello")
    assert chat.saved() == [("user", "hello"), ("assistant", "hello")]
    chat.says("/bye")
    assert chat.leaves() == 0


def test_ctrl_c_after_other_lines_does_not_leave(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.types(CTRL_C)
    chat.sees("Ctrl-C again")
    chat.ready()
    chat.says("hello", "hello")
    chat.types(CTRL_C)
    chat.sees("Ctrl-C again")


def test_arrow_up_brings_back_lines_of_this_chat_and_of_earlier_ones(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.says("long-ago", "long-ago")
    chat.says("/quit")
    assert chat.leaves() == 0
    chat = start("out=echo").ready()
    chat.says("recently", "recently")
    chat.types(UP)
    chat.sees("recently")
    chat.types(UP + UP)
    chat.sees("long-ago")
    chat.types("\r")
    chat.sees("long-ago\r\n")
    chat.ready()
    assert chat.saved()[-1] == ("assistant", "long-ago")


def test_all_scripts_can_be_typed_and_corrected(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.types("Grüße 你好 🎉x\x7f\r")
    chat.sees("\r\n")
    chat.sees("Grüße 你好 🎉\r\n")
    chat.ready()
    assert chat.saved()[-1] == ("assistant", "Grüße 你好 🎉")


def test_a_message_may_have_several_lines(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.types("one\\\r")
    chat.types("two" + ALT_ENTER + "three\r")
    chat.sees("two\r\nthree\r\n")
    chat.ready()
    assert chat.saved()[0] == ("user", "one\ntwo\nthree")


def test_the_window_can_change_its_size_at_any_time(start: Start) -> None:
    chat = start("out=echo", DYN_TOKEN_ECHO_DELAY_MS="5").ready()
    chat.terminal.setwinsize(24, 40)
    text = " ".join(f"word{number}" for number in range(40))
    chat.says(text)
    chat.sees("word3 ")
    chat.terminal.setwinsize(50, 200)
    chat.sees("word20 ")
    chat.terminal.setwinsize(10, 20)
    chat.sees("word39\r\n")
    chat.ready()
    chat.says("still fine", "still fine")
    assert chat.saved()[1] == ("assistant", text)


def test_typing_ahead_waits_for_the_answer(start: Start) -> None:
    chat = start("out=echo", DYN_TOKEN_ECHO_DELAY_MS="10").ready()
    chat.says("0123456789" * 8)
    chat.sees("0123")
    chat.types("typed-ahead\r")
    chat.sees("456789" + "0123456789" * 7 + "\r\n")
    chat.sees("typed-ahead")
    chat.sees("typed-ahead\r\n")
    assert chat.ready().saved()[-1] == ("assistant", "typed-ahead")


def test_markdown_is_rendered_as_it_comes(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.says("a **bold** word")
    chat.sees("a \x1b[0m\x1b[1mbold\x1b[0m word")


def test_thoughts_are_dimmed_and_not_kept(start: Start, tmp_path: Path) -> None:
    (tmp_path / "thinker.py").write_text(
        "async def generate(request):\n"
        "    for key, text in (('reasoning_content', 'hmm'), ('content', 'Yes.')):\n"
        "        yield {'choices': [{'index': 0, 'delta': {key: text}, 'finish_reason': None}]}\n"
    )
    chat = start("out=pystr:thinker.py").ready()
    chat.says("really?", "\x1b[2mhmm\x1b[0m\r\n\r\nYes.\r\n")
    assert chat.saved() == [("user", "really?"), ("assistant", "Yes.")]


def test_the_commands(start: Start, tmp_path: Path) -> None:
    chat = start("out=echo", "--model-name", "parrot").ready()
    chat.says("/help", "/system TEXT")
    chat.says("/system", "(none)")
    chat.says("/system Be kind.", "Be kind.")
    chat.says("/system -", "(none)")
    chat.says("/model", "* parrot")
    chat.says("/model nobody", "no such model: nobody")
    chat.says("/stats", "figures on")
    chat.says("hello", "first after")
    chat.says("/hepl", "no such command: /hepl")
    chat.says("/save talk.md", "saved to")
    assert (tmp_path / "talk.md").read_text() == "**user**\n\nhello\n\n**assistant**\n\nhello\n"
    chat.says("/save talk.md", "File exists")
    chat.says("/save /nowhere/talk.md", "No such file")
    chat.says("/quit")
    assert chat.leaves() == 0


COUNTS = """
calls = 0

async def generate(request):
    global calls
    calls += 1
    text = f"answer {calls} to " + repr(request["messages"][-1]["content"])
    yield {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
"""


def test_a_question_is_asked_again_changed_and_kept(start: Start, tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "notes.txt").write_text("remember\n")
    chat = start("out=pystr:counts.py").ready()
    chat.says("/retry", "nothing was asked yet")
    chat.says("hello", "answer 1 to 'hello'")
    chat.says("/retry", "answer 2 to 'hello'")
    assert chat.saved() == [("user", "hello"), ("assistant", "answer 2 to 'hello'")]
    chat.types("/edit\r")
    chat.ready()
    chat.says(" you", "answer 3 to 'hello you'")
    assert chat.saved() == [("user", "hello you"), ("assistant", "answer 3 to 'hello you'")]
    chat.says("/file nothing.txt", "cannot read nothing.txt: No such file")
    chat.says("/file notes.txt", "notes.txt goes with the next question (9 characters)")
    chat.says("what?", "answer 4 to 'File notes.txt:")
    assert chat.saved()[2] == ("user", "File notes.txt:\n\nremember\n\nwhat?")
    chat.says("/clear", "forgotten")
    chat.says("/load saved-1.json", "going on with saved-1.json")
    assert chat.saved() == [("user", "hello you"), ("assistant", "answer 3 to 'hello you'")]
    chat.says("/load notes.txt", "holds no conversation")
    chat.says("/load nothing.json", "cannot read nothing.json")
    chat.types(CTRL_D)
    assert chat.leaves() == 0


def test_several_models_are_asked_about_and_a_lost_one_is_named(start: Start, tmp_path: Path) -> None:
    with running(tmp_path, "in=dyn://b", "out=echo", "--model-name", "beta") as beta:
        beta.line_with("worker for 'beta'")
        with running(tmp_path, "in=dyn://a", "out=echo", "--model-name", "alpha") as alpha:
            alpha.line_with("worker for 'alpha'")
            (tmp_path / "one").mkdir()
            chat = start("out=dyn")
            chat.terminal.expect(["which model", "Talking to"])
            if chat.terminal.after == "which model":  # else one of them was found before the other
                chat.types("gamma\r")
                chat.sees("a number up to 2, or a name")
                chat.ready()
                chat.types("alpha\r")
                chat.sees("Talking to alpha")
            chat.ready()
            chat.says("/model alpha", "* alpha")
            chat.says("hello", "hello")
        listed = "* alpha"
        while "* alpha" in listed:  # until the chat has heard that its worker is gone
            chat.types("/model\r")
            chat.sees("  beta")
            listed = chat.terminal.before
            chat.ready()
        chat.says("again", "no worker serves alpha now: ask again when one has joined")
        chat.says("/model beta", "* beta")
        chat.says("hello there", "hello there")
        chat.types(CTRL_D)
        assert chat.leaves() == 0


def test_options_are_set_shown_and_sent(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mirror.py").write_text(
        "async def generate(request):\n"
        "    text = ' '.join(f'{key}={request.get(key)}' for key in ('temperature', 'max_tokens', 'stop'))\n"
        "    yield {'choices': [{'index': 0, 'delta': {'content': text}, 'finish_reason': 'stop'}]}\n"
    )
    chat = start("out=pystr:mirror.py", "--model-name", "mirror").ready()
    chat.says("hello", "temperature=None max_tokens=None stop=None")
    chat.says("/set temperature 0.7", "temperature: 0.7")
    chat.says("/set max_tokens 9", "max_tokens: 9")
    chat.says("/set stop END", 'stop: "END"')
    chat.says("hello", "temperature=0.7 max_tokens=9 stop=END")
    chat.says("/set temperature 9", "temperature: must be at most 2, got 9.")
    chat.says("/set temprature 1", "did you mean 'temperature'?")
    chat.says("/set stop -", "stop: (default)")
    chat.says("/set system Be kind.", "Be kind.")
    chat.types("/show\r")
    for line in ("model                mirror", "system               Be kind.", "temperature          0.7"):
        chat.sees(line)
    chat.ready()
    chat.says("/set", "max_tokens           9")
    chat.says("/?", "/set NAME VALUE")
    chat.says("/bye")
    assert chat.leaves() == 0


def test_a_full_context_leaves_out_the_oldest_exchanges_but_not_the_system_prompt(start: Start, model: Path) -> None:
    chat = start("out=echo_core", "--context-length", "120", str(model)).ready()
    chat.says("/system Be brief.", "Be brief.")
    chat.says("/set max_tokens 30", "max_tokens: 30")
    for word in ("apple", "banana"):
        chat.says(word, "Be brief.")
    chat.types("cherry\r")
    chat.sees("the context is full: the oldest exchange is no longer sent")
    chat.sees("banana")
    chat.ready()
    assert [text for role, text in chat.saved() if role == "user"] == ["apple", "banana", "cherry"]
    chat.types("/show\r")
    chat.terminal.expect(r"context +(\d+) of 120 tokens")
    assert 0 < int(chat.terminal.match[1]) <= 120


def test_words_are_wrapped_at_the_width_of_the_terminal(start: Start) -> None:
    chat = start("out=echo").ready()
    chat.terminal.setwinsize(30, 20)
    chat.says("twelve words fit", "twelve words fit\r\n")
    chat.says("these words do not fit", "\x1b[20G\x1b[K\r\n\x1b[0mfit\r\n")


def test_a_failed_question_can_be_asked_again(start: Start, model: Path) -> None:
    chat = start("out=echo_core", "--context-length", "50", str(model)).ready()
    chat.says("x y z " * 60, "maximum context length is 50 tokens")
    chat.says("short", "assistant")
    assert [role for role, _ in chat.saved()] == ["user", "assistant"]


def test_an_exception_in_an_engine_is_one_line_and_its_traceback_is_for_the_log(start: Start, tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text("async def generate(request):\n    raise KeyError('boom')\n    yield\n")
    for flags, traced in (((), False), (("-v",), True)):
        chat = start("out=pystr:breaks.py", *flags).ready()
        chat.types("hello\r")
        chat.sees("\x1b[31mKeyError: 'boom'\x1b[0m")
        said = str(chat.terminal.before)
        assert ("Traceback" in said, "the handler of request" in said) == (traced, traced)
        chat.ready()


def test_a_home_that_cannot_be_written_to_costs_only_the_history(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chat = start("out=echo", XDG_STATE_HOME=str(tmp_path / "file")).ready()
    chat.says("hello", "hello")


def test_a_chat_needs_a_terminal(tmp_path: Path) -> None:
    done = run(tmp_path, "in=text", "out=echo", input="hi")
    assert done.returncode == 1
    assert re.search("needs a terminal", done.stderr.decode())


def test_the_frontend_chats_with_workers_that_join(start: Start, tmp_path: Path) -> None:
    chat = start("--interactive", program=[sys.executable, "-m", "dynamo.frontend"])
    chat.sees("waiting for a worker")
    with running(tmp_path, "in=dyn://a.b.c", "out=echo", "--model-name", "m"):
        chat.sees("Talking to m")
        chat.ready()
        chat.says("hello there", "hello there")
    chat.types(CTRL_D)
    assert chat.leaves() == 0
