"""Files that flags name: the engine's own arguments and the request template."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dynamo.protocols.openai_fields import MaxTokens, Temperature


class SettingsError(Exception):
    """A file of settings cannot be used; the message names it and says why."""


class RequestTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request gets where it says nothing itself."""

    model: Annotated[str, Meta(min_length=1)] | None = None
    temperature: Temperature | None = None
    max_completion_tokens: MaxTokens | None = None


def request_template(path: str | None) -> RequestTemplate:
    if path is None:
        return RequestTemplate()
    try:
        return msgspec.json.decode(_read("--request-template", path), type=RequestTemplate)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--request-template {path}: {_first_line(error)}") from error


def engine_arguments(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    text = _read("--extra-engine-args", path)
    try:
        value = _yaml(text) if Path(path).suffix in (".yaml", ".yml") else msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--extra-engine-args {path}: {_first_line(error)}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise SettingsError(f"--extra-engine-args {path}: must hold names and their values")
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
        raise SettingsError(f"{flag} {path}: {error.strerror or error}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
