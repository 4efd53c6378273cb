"""What an input can fail with."""

from __future__ import annotations

INTERRUPTED = 130
"""The exit code shells give to what a signal ended."""


class RunError(Exception):
    """One line that says what happened and what to do."""


class Interrupted(RunError):
    """A signal came before there was anything to finish."""
