"""What the package is called, which versions it has, and what its extras are."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dynamo import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = PROJECT["name"]
TRACKED = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
)
CHANGES = (ROOT / "CHANGELOG.md").read_text()
SECTIONS = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## |^\[|\Z)", CHANGES, re.MULTILINE | re.DOTALL))
STRANGER = "dynamo-" + "py"
INSTALLED = re.compile(r"pip install\b((?:(?!\", \")[^`\n#;&|])*)")
PACKAGE = re.compile(r"(?<![\w./-])((?:ai-)?dynamo[\w.-]*)(\[[\w,-]+\])?(?![\w/])")


def lines() -> list[tuple[str, str]]:
    """Every line of the repository's own text, with the file that it is in."""
    found = []
    for name in TRACKED.stdout.decode().split("\0"):
        file = ROOT / name
        if name and file.is_file() and b"\0" not in (data := file.read_bytes())[:8000]:
            found += [(name, line) for line in data.decode(errors="replace").splitlines()]
    return found


def foreign(line: str) -> list[str]:
    """The packages called dynamo something that a line installs, or names, and that are not this one."""
    named = [STRANGER] if re.search(r"(?i)\bdynamo[-_]py\b", line) else []
    installed = [name for words in INSTALLED.findall(line) for name, _ in PACKAGE.findall(words)]
    return named + [name for name in installed if name != NAME]


def test_no_line_names_a_package_of_somebody_else() -> None:
    assert [(name, line) for name, line in lines() if foreign(line)] == []


def test_the_package_of_a_stranger_is_found_where_it_is_named() -> None:
    assert foreign(f"pip install '{STRANGER}[nats]'") == [STRANGER, STRANGER]
    for name in ("dynamo", "ai-dynamo", "dynamo_runtime"):
        assert foreign(f"Run `pip install {name}` first.") == [name]
        assert foreign(f"pip install --upgrade '{name}[vllm]'") == [name]
    assert foreign(f"pip install '{NAME}[nats]' && dynamo serve FILE.yaml") == []
    assert foreign("python tests/frontend/dynamo.py") == []


def test_every_extra_that_a_sentence_asks_for_is_there() -> None:
    asked = {
        extra
        for _, line in lines()
        for words in INSTALLED.findall(line)
        for name, extras in PACKAGE.findall(words)
        for extra in extras.strip("[]").split(",")
        if name == NAME and extra
    }
    assert {"kserve", "llama_cpp", "nats", "otel", "services"} <= asked <= PROJECT["optional-dependencies"].keys()


def test_the_version_is_the_newest_release_or_a_development_version_after_it() -> None:
    unreleased, newest, *_ = SECTIONS
    assert unreleased == "Unreleased"
    if "\n- " in SECTIONS[unreleased]:
        assert Version(__version__).is_devrelease
        assert Version(__version__) > Version(newest)
    else:
        assert __version__ == newest


def test_breaking_changes_come_first_and_every_release_has_a_link() -> None:
    for name, text in SECTIONS.items():
        assert f"\n[{name}]: " in CHANGES
        for part in text.split("\n### "):
            entries = [line.startswith("- **Breaking:**") for line in part.splitlines() if line.startswith("- ")]
            assert entries == sorted(entries, reverse=True)


LOCKED = (ROOT / ".ci" / "locked.txt").read_text()
VERSIONS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", LOCKED, re.MULTILINE)
}


def wanted(extra: str = "") -> list[Requirement]:
    """What an extra asks for, or the package itself, with what it asks of its own extras."""
    found = []
    for line in PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]:
        requirement = Requirement(line)
        own = requirement.name == NAME
        found += [each for one in requirement.extras for each in wanted(one)] if own else [requirement]
    return found


def test_the_locked_versions_are_those_that_the_project_asks_for() -> None:
    """`make lock` renews them; a dependency that is added without it would not be installed where the lock is used."""
    for requirement in (*wanted(), *wanted("dev")):
        version = VERSIONS.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement}: run `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: run `make lock`"


def test_every_locked_version_has_digests_and_nothing_else_is_said_of_where_it_comes_from() -> None:
    blocks = re.split(r"\n(?=[\w.-]+(?:\[[\w,-]+\])?==)", LOCKED)[1:]
    assert len(blocks) >= len(VERSIONS)
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]
    assert not re.search(r"--(extra-)?index-url|--find-links|file:|https?://", LOCKED)
