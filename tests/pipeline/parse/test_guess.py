from __future__ import annotations

import pytest

from dynamo.model import ChatTemplate
from dynamo.pipeline.parse import guess_formats
from pipeline.parse.templates import TEMPLATES

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def guessed(source: str) -> tuple[str | None, str | None]:
    return guess_formats(ChatTemplate({"default": source}))


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_formats_that_a_template_writes_are_guessed(name: str) -> None:
    reasoning = {"hermes": "basic", "deepseek_v3_2": "deepseek_v4"}.get(name, name)
    assert guessed(TEMPLATES[name]) == (name, reasoning)


def calls_as(written: str, before: str = "") -> str:
    """A template that writes each call in this way; the answer begins as Llama's."""
    return (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        f"{{% if m.tool_calls %}}{before}{{% for call in m.tool_calls %}}{written}{{% endfor %}}"
        "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    )


ONLY_ONE = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
JSON_CALL = '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'


def test_a_call_without_a_marker_is_guessed_if_it_begins_the_answer() -> None:
    assert guessed(calls_as(JSON_CALL, before=ONLY_ONE)) == ("llama3_json", None)


def test_calls_named_only_by_their_ids_are_guessed() -> None:
    call = "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}"
    assert guessed(calls_as(f"{call}<|tool_call_end|>")) == ("kimi_k2", None)


def test_calls_inside_a_marker_that_no_format_knows_are_not_guessed() -> None:
    call = (
        "<seed:tool_call>\n<function={{ call.function.name }}>\n"
        "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>"
        "{{ value if value is string else value | tojson }}</parameter>\n{% endfor %}"
        "</function>\n</seed:tool_call>"
    )
    assert guessed(calls_as(call)) == (None, None)
    assert guessed(calls_as(call.replace("seed:", ""))) == ("qwen3_coder", None)


def test_a_format_that_reads_only_the_first_of_several_calls_is_not_guessed() -> None:
    assert guessed(calls_as(f"{JSON_CALL}\n", before="<tool_calls>\n")) == (None, None)


def test_nothing_is_guessed_from_a_template_without_calls_and_reasoning() -> None:
    assert guessed(PLAIN) == (None, None)


def test_nothing_is_guessed_from_a_template_that_refuses_everything() -> None:
    assert guessed("{{ raise_exception('no') }}") == (None, None)


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        ("{% if add_generation_prompt %}<think>\n</think>{% endif %}", "basic"),
        ("{% if add_generation_prompt %}{{ '<|open|>' ~ 'think' ~ '<|sep|>' }}{% endif %}", "kimi_k3"),
        ("{{ '[THINK]' if false }}", "mistral"),
        ("{{ '◁think▷' if false }}", "kimi"),
        ("{{ 'Here is my thought process:' if false }}", "granite"),
        ("{{ '<|channel|>analysis<|message|>' if false }}", "gpt_oss"),
        ("{{ '<seed:think>' if false }}", None),
    ],
)
def test_reasoning_is_guessed_by_markers_in_the_template_or_its_prompt(text: str, reasoning: str | None) -> None:
    assert guessed(PLAIN + text) == (None, reasoning)
