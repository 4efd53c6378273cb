"""What CONTRIBUTING.md adds in one place is there everywhere: each diff is applied to a copy of the source."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from support.distribution import install
from support.running import SOURCE, run

PAGE = (SOURCE.parent / "CONTRIBUTING.md").read_text()
CHANGES = dict(re.findall(r"\*\*(Add an? [\w ]+)\*\*: [^`]*`src/([\w/]+\.py)`", PAGE))

ENGINE = """
from dynamo.worker import EngineEntry, EngineError

def made(spec):
    raise EngineError(f"keeping {spec.spare_blocks} blocks free")

ENTRY = EngineEntry(name="guess", factory="guess:made", bundled=True)
"""


def applied(what: str, folder: Path) -> Path:
    """A copy of the source with the diff that follows this title."""
    source = folder / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    diff = re.findall(r"```diff\n(.*?)```", PAGE.partition(f"**{what}**")[2], re.DOTALL)[0].splitlines()
    context = "".join(f"{line[1:]}\n" for line in diff if line.startswith(" "))
    changed = "".join(f"{line[1:]}\n" for line in diff)
    file = source / CHANGES[what]
    before = file.read_text()
    assert before.count(context) == 1
    file.write_text(before.replace(context, changed))
    return source


def said(source: Path, folder: Path, *words: str, **environ: str) -> str:
    """What a command of the copy says."""
    done = run(folder, *words, program=[sys.executable], PYTHONPATH=str(source), **environ)
    return (done.stdout + done.stderr).decode()


def test_each_change_of_the_page_names_its_file() -> None:
    assert len(CHANGES) == 4


def test_a_worker_flag_reaches_the_engine_of_every_command(tmp_path: Path) -> None:
    source = applied("Add a worker flag", tmp_path)
    site = install(tmp_path / "site", "guess", {"guess.py": ENGINE}, "guess = guess:ENTRY").partition(":")[2]
    path = f"{source}:{site}"
    worker, dynamo_run = ("-m", "dynamo.worker", "guess", "tiny"), ("-m", "dynamo.cli.main", "in=stdin", "out=guess")
    for words, environ, blocks in (
        ([*worker, "--spare-blocks", "4"], {}, 4),
        (worker, {"DYN_SPARE_BLOCKS": "5"}, 5),
        (worker, {}, 0),
        ([*dynamo_run, "tiny", "--spare-blocks=6"], {}, 6),
    ):
        done = run(tmp_path, *words, program=[sys.executable], input="hi", PYTHONPATH=path, **environ)
        assert f"error: keeping {blocks} blocks free" in done.stderr.decode()
    assert "--spare-blocks must be at least 0, not -1" in said(source, tmp_path, *worker, "--spare-blocks", "-1")
    assert "blocks to keep free (0; DYN_SPARE_BLOCKS)" in said(source, tmp_path, "-m", "dynamo.vllm", "--help")
    assert "--spare-blocks" in said(source, tmp_path, "-m", "dynamo.cli.main", "--completion", "bash")


def test_a_frontend_flag_is_in_the_frontends_config(tmp_path: Path) -> None:
    source = applied("Add a frontend flag", tmp_path)
    assert "--answer-limit" in said(source, tmp_path, "-m", "dynamo.frontend", "--help")
    wrong = said(source, tmp_path, "-m", "dynamo.cli.main", "in=http", "--answer-limit", "-1")
    assert "--answer-limit must be at least 0, not -1" in wrong
    program = """
from dynamo.frontend.config import FrontendConfig
print(FrontendConfig.from_env({}, answer_limit="5").answer_limit)
"""
    assert said(source, tmp_path, "-c", program) == "5\n"


def test_an_engine_is_known_to_the_command_line(tmp_path: Path) -> None:
    source = applied("Add an engine", tmp_path)
    assert "did you mean 'parrot'?" in said(source, tmp_path, "-m", "dynamo.cli.main", "out=parot")
    assert "cannot load the engine 'parrot'" in said(source, tmp_path, "-m", "dynamo.cli.main", "in=stdin", "out=polly")


def test_a_router_policy_is_a_mode_that_chooses(tmp_path: Path) -> None:
    source = applied("Add a router policy", tmp_path)
    (policy,) = re.findall(r"```python\n(class MostLoaded:.*?)```", PAGE, re.DOTALL)
    with (source / "dynamo" / "router" / "policy.py").open("a") as file:
        file.write(f"\n\n{policy}")
    assert "most-loaded" in said(source, tmp_path, "-m", "dynamo.frontend", "--help")
    program = """
from pkgutil import resolve_name
from dynamo.settings.router import POLICIES
print(resolve_name(POLICIES["most-loaded"])().choose([1, 2, 3], {1: 4, 2: 5}))
"""
    assert said(source, tmp_path, "-c", program) == "2\n"
