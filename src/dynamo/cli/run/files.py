"""The file of the request template."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynamo.cli.run.errors import RunError
from dynamo.serving.request_template import RequestTemplate


def request_template(path: str | None) -> RequestTemplate | None:
    if path is None:
        return None
    try:
        return msgspec.json.decode(_read("--request-template", path), type=RequestTemplate)
    except (ValueError, RecursionError) as error:
        raise RunError(f"--request-template {path}: {_first_line(error)}") from error


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise RunError(f"{flag} {path}: {error.strerror or error}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
