"""The file of engine arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dynamo.engines.base import EngineError

_FLAG = "--extra-engine-args"


def engine_arguments(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        text = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise EngineError(f"{_FLAG} {path}: {error.strerror or error}") from error
    try:
        value = _yaml(text) if Path(path).suffix in (".yaml", ".yml") else msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{_FLAG} {path}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise EngineError(f"{_FLAG} {path}: must hold names and their values")
    return value


def _yaml(text: bytes) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
