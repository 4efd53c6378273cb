from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.pipeline.custom_tools import InputReader, called_function
from dynamo.protocols.chat import CustomCall, CustomDefinition, CustomTool, GrammarFormat, InputGrammar


def read(*fragments: str) -> list[str]:
    """What each fragment adds, and what is left at the end."""
    reader = InputReader()
    return [*(reader.add(fragment) for fragment in fragments), reader.end()]


@given(st.text(), st.booleans(), st.data())
def test_the_input_is_read_however_the_arguments_are_cut(text: str, ascii_only: bool, data: st.DataObject) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=6)))
    fragments = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    assert "".join(read(*fragments)) == text


def test_the_input_streams() -> None:
    assert read('{"inp', 'ut": "one\\', "n tw", 'o"', "}") == ["", "one", "\n tw", "o", "", ""]


@given(st.text('ab"\\u{}:d8c0 input\n', max_size=30), st.integers(0, 30))
def test_arguments_of_any_form_are_read_without_loss_of_the_stream(text: str, cut: int) -> None:
    for arguments in (text, '{"input": "' + text):
        whole = "".join(read(arguments))
        assert "".join(read(arguments[:cut], arguments[cut:])) == whole
        whole.encode()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('"just text"', "just text"),
        ('{"patch": "the only text"}', "the only text"),
        ('{"n": 1, "input": "behind"}', "behind"),
        ("no JSON", "no JSON"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        (r'{"input": "a\d\ud83d\n\ud83d\ude00\u12"}', "a\\d\ufffd\n😀\\u12"),
        ('{"input": "line\nbreak"}', "line\nbreak"),
        ('["\\ud800"]', '["\\ud800"]'),
        ('{"x": "\\ud800"}', "\ufffd"),
    ],
)
def test_arguments_that_a_model_wrote_otherwise_are_still_the_input(arguments: str, found: str) -> None:
    assert "".join(read(*arguments)) == found


def test_a_call_goes_back_to_the_model_as_it_made_it() -> None:
    call = called_function(CustomCall("apply_patch", 'a "b"\né'))
    assert json.loads(call.arguments) == {"input": 'a "b"\né'}


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_the_model_reads_the_grammar_of_the_input(syntax: str) -> None:
    form = GrammarFormat(grammar=InputGrammar(syntax=syntax, definition="a|b"))  # type: ignore[arg-type]
    function = CustomTool(custom=CustomDefinition(name="x", description="Does x.", format=form)).function
    assert function.parameters
    argument = function.parameters["properties"]["input"]
    if syntax == "regex":
        assert argument == {"type": "string", "pattern": "^(?:a|b)$"}
    else:
        assert (argument, "Does x." in str(function.description), "a|b" in str(function.description)) == (
            {"type": "string"},
            True,
            True,
        )
