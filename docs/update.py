"""Writes the help text of dynamo-run into its guide: run this after a flag has changed."""

from __future__ import annotations

import re
from pathlib import Path

from dynamo.run.help import help_text

GUIDE = Path(__file__).with_name("dynamo-run.md")


def updated(guide: str) -> str:
    return re.sub(r"```text\nusage: .*?```", lambda _: f"```text\n{help_text()}```", guide, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    GUIDE.write_text(updated(GUIDE.read_text()))
