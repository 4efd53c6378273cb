"""The guides are a site that can be searched, and no link in them leads nowhere."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = runpy.run_path(str(ROOT / "docs" / "site.py"))
lay_out: Callable[[Path], None] = SITE["lay_out"]
build: Callable[[Path], str | None] = SITE["build"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    lay_out(tmp_path / "pages")
    return tmp_path


def test_every_link_and_anchor_of_the_guides_leads_somewhere(site: Path) -> None:
    assert build(site) is None
    found = json.loads((site / "html" / "search.json").read_text())
    assert any("A decision is a pure function" in item.get("text", "") for item in found["items"])
    loaded = [
        address
        for page in (site / "html").rglob("*.html")
        for address in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", page.read_text())
    ]
    assert loaded == []


def test_a_link_and_an_anchor_that_lead_nowhere_are_named(site: Path) -> None:
    page = site / "pages" / "docs" / "planner.md"
    page.write_text(page.read_text() + "\n[one](no-such-page.md), [two](routing.md#no-such-part)\n")
    wrong = build(site)
    assert wrong is not None
    assert "2 issues found" in wrong
    assert wrong.count("docs/planner.md") == 2


def test_every_guide_is_in_the_navigation() -> None:
    listed = (ROOT / "docs" / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": docs/{page.name}" not in listed] == []
