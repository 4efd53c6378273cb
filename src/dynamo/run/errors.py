"""What an input can fail with."""

from __future__ import annotations


class RunError(Exception):
    """One line that says what happened and what to do."""
