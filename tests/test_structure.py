"""docs/structure.md leads a newcomer through the code: what it names must be there, and a class has one name alone."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
MODULES = {
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(file.read_text())
    for file in sorted((SOURCE / "dynamo").rglob("*.py"))
}
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


def test_no_two_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_no_two_classes_differ_by_an_underscore_alone() -> None:
    classes = {node.name for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert {name for name in classes if name.startswith("_") and name.lstrip("_") in classes} == set()


def test_a_docstring_is_a_sentence_of_its_own() -> None:
    fragment = re.compile(r"Of\b|.*\bso many (?!that)", re.DOTALL | re.IGNORECASE)
    found = {
        f"{module}:{node.lineno}"
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(text := node.value.value, str) and fragment.match(text.strip())
    }
    assert found == set()


def imported(module: str, statements: Iterable[ast.stmt]) -> set[str]:
    """The modules of this package that these statements of `module` import."""
    found: set[str] = set()
    package = module if (SOURCE / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]
    for node in statements:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found.update(f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names)
    return found & MODULES.keys()


def only_for_types(tree: ast.Module) -> list[ast.stmt]:
    guards = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return [statement for guard in guards for statement in guard.body]


def test_no_import_for_types_hides_a_cycle() -> None:
    typed = {module: imported(module, only_for_types(tree)) for module, tree in MODULES.items()}
    imports = {module: imported(module, tree.body) | typed[module] for module, tree in MODULES.items()}

    def reached(start: str) -> set[str]:
        seen, left = {start}, [start]
        while left:
            new = imports[left.pop()] - seen
            seen |= new
            left += new
        return seen

    assert {(module, target) for module in typed for target in typed[module] if module in reached(target)} == set()
