"""docs/structure.md leads a newcomer through the code: what it names must be there, and a class has one name alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "dynamo"
MODULES = {
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(file.read_text())
    for file in sorted(PACKAGE.rglob("*.py"))
}
PAGE = (ROOT / "docs" / "structure.md").read_text()
STEPS = re.findall(r"`([\w/]+\.py)`\s+`(\w+(?:\.\w+)?)`", PAGE)
MAP = PAGE.partition("## The rooms")[2].partition("## Beside")[0]
CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
LAYERS = [layer.split(" | ") for layer in CONTRACT["layers"]]
SHORT, (SHELF,), *DOWN = LAYERS
ROOMS = [room for layer in reversed(DOWN) for room in layer]
"""From the bottom up, as the contract of `make lint` has them."""


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
    assert name in definitions(ast.parse((PACKAGE / file).read_text()))


def rows(table: str) -> list[str]:
    """The first cells of a table's rows."""
    return re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)


def python_files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.py") if file.name != "__init__.py"]


def test_the_map_lists_the_rooms_in_the_order_of_their_imports() -> None:
    rooms, _, beside = MAP.partition("| beside the rooms |")
    assert rows(rooms) == [f"`{room}/`" for room in ROOMS]
    names = {name.rstrip("/") for row in rows(beside) for name in re.findall(r"`([\w/]+)`", row)}
    assert names == {SHELF, *SHORT}


def test_the_map_fits_on_a_screen() -> None:
    assert len(ROOMS) <= 19
    assert len(MAP.strip().splitlines()) <= 45


def test_every_package_is_a_room_or_a_short_door() -> None:
    there = {file.stem for file in PACKAGE.iterdir() if (file / "__init__.py").exists() or file.suffix == ".py"}
    assert there - {"__init__"} == {*ROOMS, SHELF, *SHORT}


@pytest.mark.parametrize("name", [*ROOMS, *SHORT])
def test_a_room_can_be_the_first_that_a_program_imports(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import dynamo.{name}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SHORT)
def test_a_door_for_programs_is_short(name: str) -> None:
    files = [PACKAGE / f"{name}.py", *(PACKAGE / name).rglob("*.py")]
    assert 0 < sum(len(file.read_text().splitlines()) for file in files if file.exists()) < 60


@pytest.mark.parametrize("room", [*ROOMS, SHELF])
def test_no_folder_of_a_room_is_a_heap(room: str) -> None:
    folders = [PACKAGE / room, *(file.parent for file in (PACKAGE / room).rglob("*.py"))]
    assert {str(folder): len(python_files(folder)) for folder in folders if len(python_files(folder)) > 20} == {}


def test_every_name_in_a_room_s_row_is_in_that_room() -> None:
    found = re.findall(r"^\| `(\w+)/` \| (.*) \|$", MAP.partition("| beside the rooms |")[0], re.MULTILINE)
    assert len(found) == len(ROOMS)
    for room, about in found:
        for name in set(re.findall(r"`([\w/]+)`", about)):
            path = PACKAGE / room / name
            assert path.is_dir() if name.endswith("/") else path.with_suffix(".py").is_file(), (room, name)


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
    beside = (path for room in ("tests", "benchmarks") for path in (ROOT / room).rglob("*.py"))
    trees = MODULES | {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in beside}
    found = {
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
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
