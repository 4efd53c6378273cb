"""Errors of dynamo-run's inputs."""

from __future__ import annotations

from dynamo.protocols.errors import StartError

INTERRUPTED = 130
"""The exit code shells use for a process that SIGINT ended."""


class RunError(StartError):
    """dynamo-run cannot go on; the message is one line and names the fix."""


class Interrupted(Exception):
    """A signal came while the engine was starting."""
