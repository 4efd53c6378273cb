"""Builds the guides as a site that can be searched, without a network; a link or an anchor that leads nowhere fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "benchmarks/results", "deploy", "examples")
KINDS = {".md", ".png", ".svg", ".yaml", ".yml", ".json", ".py", ".service"}


def lay_out(pages: Path) -> None:
    """Copy the pages, and the files that they lead to, to the places that they have in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md", *FOLDERS],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        source, target = ROOT / name, pages / name
        inside = (
            "/" not in name or name.startswith(FOLDERS) or name in ("benchmarks/README.md", "models/tiny/README.md")
        )
        if inside and source.suffix in KINDS and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def build(site: Path) -> str | None:
    """Build `html` from `pages`; what is wrong with a page, if anything is."""
    shutil.copyfile(ROOT / "docs" / "mkdocs.yml", site / "mkdocs.yml")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr)
    # After its findings it prints a traceback of its own.
    return said.partition("Traceback (most recent")[0] if built.returncode else None


def main() -> None:
    site = ROOT / ".site"
    shutil.rmtree(site, ignore_errors=True)
    lay_out(site / "pages")
    if wrong := build(site):
        sys.exit(wrong)
    print(f"Look at it with: python3 -m http.server --bind 127.0.0.1 --directory {site / 'html'}")


if __name__ == "__main__":
    main()
