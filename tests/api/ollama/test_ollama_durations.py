"""Ollama's answers tell how long their tokens took where that was measured."""

from __future__ import annotations

import time

from msgspec import UNSET

from dynamo.api.ollama.stream import OllamaLines


def test_tokens_that_came_at_once_have_no_duration() -> None:
    lines = OllamaLines("toy", is_chat=True)
    lines.first_output = lambda: time.perf_counter() + 60
    answer = lines.last(lines.piece("all of it"), "stop", 7, 64)
    assert (answer.prompt_eval_count, answer.eval_count, answer.eval_duration) == (7, 64, UNSET)
    assert isinstance(answer.prompt_eval_duration, int)


def test_tokens_that_came_one_after_another_have_the_time_since_the_first() -> None:
    lines = OllamaLines("toy", is_chat=True)
    first = time.perf_counter() - 2
    lines.first_output = lambda: first
    answer = lines.last(lines.piece("the last one"), "stop", 7, 64)
    assert isinstance(answer.eval_duration, int)
    assert answer.eval_duration >= 2_000_000_000


def test_an_answer_without_output_has_no_durations_of_tokens() -> None:
    lines = OllamaLines("toy", is_chat=False)
    answer = lines.last(lines.piece(), "stop", 7, 0)
    assert (answer.prompt_eval_duration, answer.eval_duration) == (UNSET, UNSET)
    assert isinstance(answer.total_duration, int)
