"""The table in docs/engine-features.md says what the tests of this folder check."""

from __future__ import annotations

from pathlib import Path

from engines.conformance.features import ENGINES, FEATURES, NOT_SHOWN, ON_A_GPU

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "engine-features.md"
NOT_RUN = ("trtllm",)


def rows() -> list[str]:
    """The table, as the page must show it."""
    names = ["echo" if name == "echo_core" else name for name in (*ENGINES, *ON_A_GPU)]
    table = [f"| | {' | '.join((*names, *NOT_RUN))} | test |", f"|---|{'---|' * (len(names) + len(NOT_RUN) + 1)}"]
    for key, feature in FEATURES.items():
        shown = [*ENGINES, *(() if key in NOT_SHOWN else ON_A_GPU)]
        cells = [*(feature.engines[name].value for name in shown)]
        cells += ["not run here"] * (len(names) + len(NOT_RUN) - len(cells))
        table.append(f"| {feature.title} | {' | '.join(cells)} | {feature.test} |")
    return table


def test_the_page_shows_the_table() -> None:
    assert "\n".join(rows()) in PAGE.read_text(), "\n" + "\n".join(rows())


def test_every_row_names_a_test_of_this_folder() -> None:
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    assert [feature.test for feature in FEATURES.values() if f"def {feature.test}(" not in tests] == []
