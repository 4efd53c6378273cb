"""The files that flags name: engine arguments and request template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dynamo.run.errors import RunError
from dynamo.serving.request_template import RequestTemplate


def request_template(path: str | None) -> RequestTemplate | None:
    if path is None:
        return None
    try:
        return msgspec.json.decode(_read("--request-template", path), type=RequestTemplate)
    except (ValueError, RecursionError) as error:
        raise RunError(f"--request-template {path}: {_first_line(error)}") from error


def engine_arguments(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    text = _read("--extra-engine-args", path)
    try:
        value = _yaml(text) if Path(path).suffix in (".yaml", ".yml") else msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"--extra-engine-args {path}: {_first_line(error)}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RunError(f"--extra-engine-args {path}: must hold names and their values")
    return value


def _yaml(text: bytes) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise RunError(f"{flag} {path}: {error.strerror or error}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
