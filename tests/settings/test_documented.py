"""The guides and the tables of settings know the same variables."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from dynamo.settings import options

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\bDYN_[A-Z0-9_]+\b")
TABLES = runpy.run_path(str(ROOT / "docs" / "update.py"))["TABLES"]
SET = {name for tables in TABLES.values() for table in tables for option in options(table) for name in option.variables}
GUIDES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]


def named_in(files: list[Path]) -> set[str]:
    return {name for file in files for name in VARIABLE.findall(file.read_text())}


def test_every_variable_of_a_table_is_documented() -> None:
    text = "\n".join(guide.read_text() for guide in GUIDES)
    assert [name for name in sorted(SET) if f"`{name}`" not in text and f"`{name}=" not in text] == []


def test_every_documented_variable_is_in_a_table() -> None:
    assert named_in(GUIDES) - SET == set()


def test_the_code_knows_no_variable_beside_the_tables() -> None:
    assert named_in(sorted((ROOT / "src").rglob("*.py"))) - SET == set()
