"""Command-line flags whose misuse costs one line, not a screen."""

from __future__ import annotations

import argparse
from typing import NoReturn


class FlagParser(argparse.ArgumentParser):
    """argparse without its usage dump: what is wrong, where to read more, exit code 2."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")
