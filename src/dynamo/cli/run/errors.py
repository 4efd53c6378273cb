"""Errors of dynamo-run's inputs."""

from __future__ import annotations

from dynamo.protocols.errors import StartError


class RunError(StartError):
    """dynamo-run cannot go on; the message is one line and names the fix."""
