"""The guides, the commands and the tables of settings agree."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

from dynamo.settings import options

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\bDYN_[A-Z0-9_]+\b")
TABLES = runpy.run_path(str(ROOT / "docs" / "update.py"))["TABLES"]
SET = {name for tables in TABLES.values() for table in tables for option in options(table) for name in option.variables}
READ_FOR_PROGRAMS = {"DYN_HEALTH_CHECK_PAYLOAD", "DYN_NAMESPACE_WORKER_SUFFIX"}
"""Read by `dynamo.health_check` and `dynamo.common` when the program of an engine author asks; no command has them."""
GUIDES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]


def named_in(files: list[Path]) -> set[str]:
    return {name for file in files for name in VARIABLE.findall(file.read_text())}


def test_every_variable_of_a_table_is_documented() -> None:
    text = "\n".join(guide.read_text() for guide in GUIDES)
    assert [name for name in sorted(SET) if f"`{name}`" not in text and f"`{name}=" not in text] == []


def test_every_documented_variable_is_in_a_table() -> None:
    assert named_in(GUIDES) - SET == set()


def test_the_code_knows_no_variable_beside_the_tables() -> None:
    assert named_in(sorted((ROOT / "src").rglob("*.py"))) - SET == READ_FOR_PROGRAMS


@pytest.mark.parametrize("command", ["frontend", "mocker", "router"])
def test_every_boolean_flag_takes_a_value_or_none_and_can_be_negated(command: str) -> None:
    parser = import_module(f"dynamo.{command}.__main__").parser()
    needed = {"mocker": ["--model-path", "x"], "router": ["--endpoint", "a.b.c"]}.get(command, [])
    booleans = [action for action in parser._actions if action.metavar == "BOOL"]
    flags = [(word, action.dest) for action in booleans for word in action.option_strings]
    assert flags
    for flag, key in flags:
        for words, value in (([flag], "true"), ([flag, "false"], "false"), ([f"--no-{flag[2:]}"], "false")):
            assert vars(parser.parse_args([*needed, *words]))[key] == value
    switches = ("_StoreTrueAction", "_StoreFalseAction")
    assert [action.dest for action in parser._actions if type(action).__name__ in switches] == []


def test_the_standalone_routers_help_shows_its_own_default() -> None:
    text = " ".join(import_module("dynamo.router.__main__").parser().format_help().split())
    assert "--router-mode MODE how to choose a worker: kv (kv)" in text
