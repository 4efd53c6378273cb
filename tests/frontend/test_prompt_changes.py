"""What changed in the prompt of a session, and how many cached tokens that cost."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.measure.prompt_changes import (
    BILLING,
    CLOCK,
    IDENTIFIER,
    ORDER,
    SPACE,
    TEXT,
    PromptChange,
    PromptChanges,
)
from dynamo.protocols.engine import Session
from support.serving import serving

SESSION = Session("s", "me")
WORDS = [f"word{number}" for number in range(500)]


def prose(words: int, seed: int = 1) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def decode(ids: object) -> str:
    return "".join(map(chr, ids))  # type: ignore[call-overload]


def examine(*prompts: str, session: Session = SESSION) -> list[PromptChange | None]:
    """One token per character."""
    changes = PromptChanges()
    return [changes.examine(session, "m", [ord(each) for each in one], decode) for one in prompts]


BILLED = "x-anthropic-billing-header: cc_version=2.1.197.{}; cc_entrypoint=cli;\nYou are"
TOOLS = [f'{{"name": "tool{number}", "description": "{prose(8, number)}"}}' for number in range(20)]


@pytest.mark.parametrize(
    ("cause", "before", "after"),
    [
        (BILLING, BILLED.format("fa0"), BILLED.format("6f4")),
        (CLOCK, "It is 2026-11-19 21:04:11 now.", "It is 2026-11-19 21:05:37 now."),
        (CLOCK, "Today is Thursday, Nov 19.", "Today is Friday, Nov 20."),
        (CLOCK, "time=1795121720.", "time=1795121733."),
        (IDENTIFIER, "Run 3f2b8a7c-11d4-4e0a.", "Run 9c0d1e2f-77aa-4b1c."),
        (SPACE, "Be brief.\n\nBe kind.", "Be brief.\nBe kind."),
        (ORDER, "\n".join(TOOLS), "\n".join(reversed(TOOLS))),
        (TEXT, "You are a cook.", "You are a judge."),
    ],
)
def test_the_cause_of_a_change_is_named_with_what_it_cost(cause: str, before: str, after: str) -> None:
    head, rest = prose(20), prose(400, 2)
    first, change = examine(f"{head}\n{before}\n{rest}", f"{head}\n{after}\n{rest}\nMore.")
    assert first is None
    assert change is not None
    assert change.cause == cause
    assert len(head) < change.at <= len(head) + 1 + len(before)
    lost = len(rest) if cause != ORDER else len(rest) + len(after)
    assert change.lost_tokens == pytest.approx(lost, rel=0.15)


def test_a_change_says_what_to_do_about_it() -> None:
    _, change = examine(*(BILLED.format(digits) + prose(400) for digits in ("fa0", "6f4")))
    assert str(change).endswith("not cached: Claude Code's billing header; --strip-anthropic-preamble leaves it out")


def test_turns_that_go_on_are_no_changes() -> None:
    prompts = [prose(400) + "<think>"]
    for turn in range(4):
        prompts.append(prompts[-1].removesuffix("<think>") + prose(100, turn) + "<think>")
    assert examine(*prompts) == [None] * 5


def test_other_prompts_of_the_same_session_are_no_changes() -> None:
    talk, title = prose(400), prose(300, 7)
    assert examine(talk, title, talk + prose(50, 3), title + "!", talk + prose(90, 3)) == [None] * 5


def test_a_prompt_that_was_cut_is_no_change() -> None:
    talk = prose(800)
    assert examine(talk, talk[:1000] + " And now the summary.") == [None, None]


def test_the_first_turn_is_compared_with_the_last_session_of_the_same_key() -> None:
    changes = PromptChanges()

    def first_turn(owner: str, id: str, prompt: str) -> PromptChange | None:
        return changes.examine(Session(id, owner), "m", [ord(each) for each in prompt], decode)

    first_turn("me", "1", BILLED.format("fa0") + prose(400))
    assert first_turn("you", "1", BILLED.format("b97") + prose(400)) is None
    other = first_turn("me", "2", BILLED.format("6f4") + prose(400))
    assert other is not None
    assert other.cause == BILLING
    assert first_turn("me", "3", BILLED.format("6f4") + " a judge." + prose(400)) is None


def test_what_is_remembered_is_bounded() -> None:
    changes = PromptChanges(most_bytes=100_000)
    for number in range(300):
        changes.examine(Session(str(number % 50)), "m", [ord(each) for each in prose(40, number)], decode)
        assert changes.bytes <= 100_000
    assert changes.bytes == sum(len(prompt) for prompts in changes._sessions.values() for prompt in prompts)


@given(st.lists(st.lists(st.integers(0, 3), max_size=900), max_size=6))
def test_any_prompts_can_be_compared(prompts: list[list[int]]) -> None:
    changes = PromptChanges(most_bytes=8000)
    for ids in prompts:
        change = changes.examine(SESSION, "m", ids, lambda ids: " ".join(map(str, ids)))
        if change:
            assert 0 <= change.at < len(ids)
            assert change.lost_tokens > 0
        assert changes.bytes <= 8000


async def test_a_client_and_an_operator_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(tmp_path, context=20_000) as served:
        for time in ("21:04", "21:05"):
            messages = [{"role": "system", "content": f"It is {time}. {prose(200)}"}, {"role": "user", "content": "Hi"}]
            answer = await served.chat(headers={"x-session-id": "s"}, messages=messages)
            answer.raise_for_status()
        assert answer.headers["x-dynamo-warning"].endswith("are not cached: a date or a clock")
        assert "session s: the prompt changed at token" in caplog.text
        (turns,) = served.server._frontend.requests.sessions.recent.values()
        assert turns.changed.endswith("a date or a clock")
        samples = await served.metrics()
        counted = {name: value for name, value in samples.items() if "prompt_change" in name}
        assert [value > 0 for value in counted.values()] == [True, True]
        assert all('cause="clock"' in name for name in counted)
