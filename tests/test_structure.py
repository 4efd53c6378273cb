"""docs/structure.md leads a newcomer through the code: what it names must be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "structure.md").read_text()
STEPS = re.findall(r"`([\w/]+\.py)`\s+`(\w+(?:\.\w+)?)`", PAGE)
ROOMS = re.findall(r"`([\w/]+)/`", PAGE.partition("## The rooms")[2].partition("## Beside")[0])


def definitions(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{function.name}" for function in functions)
    return names


def test_the_page_names_the_steps_of_a_request() -> None:
    assert len(STEPS) >= 10


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_of_the_request_is_where_the_page_says(file: str, name: str) -> None:
    assert name in definitions(ast.parse((ROOT / "src" / "dynamo" / file).read_text()))


def test_every_room_is_on_the_page_and_there() -> None:
    package = ROOT / "src" / "dynamo"
    there = {folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()}
    assert {room for room in ROOMS if "/" not in room} & there == there
