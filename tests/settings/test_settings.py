"""One declaration makes the flag, the variable, the help and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st
from msgspec import Meta

from dynamo.settings import Setting, Settings, given, options, read
from dynamo.settings.arguments import FlagParser


class Kitchen(Settings, frozen=True, kw_only=True):
    heat: Annotated[
        int,
        Meta(ge=1, le=9),
        Setting("--heat", ("KITCHEN_HEAT", "OVEN_HEAT"), "how hot", group="oven", aliases=("--fire",)),
    ] = 5
    minutes: Annotated[
        float | None, Meta(gt=0), Setting("--minutes", "KITCHEN_SECONDS", group="oven", variable_scale=1 / 60)
    ] = None
    mode: Annotated[
        Literal["bake", "grill", "steam"],
        Setting("--mode", "KITCHEN_MODE", "what to do", synonyms=(("broil", "grill"),)),
    ] = "bake"
    fan: Annotated[bool, Setting("--fan", "KITCHEN_FAN", "use the fan")] = False
    guests: Annotated[tuple[str, ...], Setting("--guest", "KITCHEN_GUESTS", "who comes")] = ()
    book: Annotated[Path | None, Setting("--book", metavar="FILE", help="recipes")] = None
    door: Annotated[str, Setting(variables="KITCHEN_DOOR", help="where it is")] = "left"
    dish: str = "not a setting"


def cook(*words: str, **environ: str) -> Kitchen:
    parsed = FlagParser("kitchen", "Cooks.", Kitchen).parse_args(words)
    return Kitchen.from_env(environ, **given(vars(parsed), Kitchen))


@pytest.mark.parametrize(
    ("words", "environ", "field", "value"),
    [
        ("", {}, "heat", 5),
        ("", {"OVEN_HEAT": "3"}, "heat", 3),
        ("", {"OVEN_HEAT": "3", "KITCHEN_HEAT": " 4 "}, "heat", 4),
        ("--heat 2", {"KITCHEN_HEAT": "4"}, "heat", 2),
        ("--fire=2", {}, "heat", 2),
        ("", {"KITCHEN_HEAT": ""}, "heat", 5),
        ("--minutes 2", {}, "minutes", 2.0),
        ("", {"KITCHEN_SECONDS": "90"}, "minutes", 1.5),
        ("--minutes None", {"KITCHEN_SECONDS": "90"}, "minutes", None),
        ("--mode steam", {}, "mode", "steam"),
        ("--mode Broil", {}, "mode", "grill"),
        ("--fan", {"KITCHEN_FAN": "off"}, "fan", True),
        ("--no-fan", {"KITCHEN_FAN": "on"}, "fan", False),
        ("--fan=false", {"KITCHEN_FAN": "on"}, "fan", False),
        ("--guest a,b --guest c", {}, "guests", ("a,b", "c")),
        ("", {"KITCHEN_GUESTS": "a, b c"}, "guests", ("a", "b", "c")),
        ("--book a.txt", {}, "book", Path("a.txt")),
        ("", {"KITCHEN_DOOR": "right"}, "door", "right"),
    ],
)
def test_a_flag_beats_a_variable_which_beats_the_default(
    words: str, environ: dict[str, str], field: str, value: Any
) -> None:
    assert getattr(cook(*words.split(), **environ), field) == value


@pytest.mark.parametrize(
    ("words", "environ", "sentence"),
    [
        ("--heat high", {}, "--heat must be a whole number, not 'high'"),
        ("--heat 10", {}, "--heat must be at most 9, not 10"),
        ("", {"OVEN_HEAT": "0"}, "OVEN_HEAT must be at least 1, not 0"),
        ("--minutes nan", {}, "--minutes must be a finite number, not nan"),
        ("--minutes 0", {}, "--minutes must be above 0, not 0.0"),
        ("--mode grll", {}, "--mode must be one of bake, grill or steam, not 'grll'; did you mean 'grill'?"),
        ("", {"KITCHEN_FAN": "maybe"}, "KITCHEN_FAN must be true or false, not 'maybe'"),
    ],
)
def test_a_refusal_is_one_sentence_that_names_the_flag_or_the_variable(
    words: str, environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the sentence is compared below
        cook(*words.split(), **environ)
    assert str(refused.value) == sentence


def test_a_file_beats_the_default_only() -> None:
    file = {"heat": 7, "fan": True, "minutes": None}
    assert read(Kitchen, {"KITCHEN_FAN": "off"}, {}, file) == {"heat": 7, "fan": False}
    with pytest.raises(ValueError, match=r"recipe\.heat must be at most 9, not 11"):
        read(Kitchen, {}, {}, {"heat": 11}, "recipe")
    with pytest.raises(ValueError, match="recipe has no 'colour'; it knows heat, minutes"):
        read(Kitchen, {}, {}, {"colour": 1}, "recipe")


def test_a_keyword_that_is_no_flag_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="Kitchen has no flag 'colour'"):
        Kitchen.from_env({}, colour=1)


def test_the_help_shows_sentence_choices_default_and_variable() -> None:
    text = " ".join(FlagParser("kitchen", "Cooks.", Kitchen).format_help().split())
    assert "oven: --heat N, --fire N how hot (5; KITCHEN_HEAT)" in text
    assert "--mode NAME what to do: bake, grill or steam (bake; KITCHEN_MODE)" in text
    assert "--fan [BOOL] use the fan (false; KITCHEN_FAN)" in text
    assert "KITCHEN_DOOR" not in text


@given_values(st.dictionaries(st.sampled_from([option.key for option in options(Kitchen)]), st.text(max_size=8)))
def test_any_text_is_a_value_or_a_value_error_that_names_its_flag(flags: dict[str, str]) -> None:
    refusal = "--"
    try:
        read(Kitchen, {}, {name: [text] if name == "guest" else text for name, text in flags.items()})
    except ValueError as error:
        refusal = str(error)
    assert refusal.startswith(("--", "door", "KITCHEN_"))
