"""What an input can fail with."""

from __future__ import annotations

from dynamo.protocols.errors import StartError

INTERRUPTED = 130
"""The exit code shells give to what a signal ended."""


class RunError(StartError):
    """One line that says what happened and what to do."""


class Interrupted(Exception):
    """A signal came before there was anything to finish."""
