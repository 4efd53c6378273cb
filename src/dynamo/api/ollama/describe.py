"""A served model as Ollama lists it: size, digest and family, as far as its files are on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from dynamo.model.gguf import read_gguf
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import ModelError
from dynamo.serving.served_model import ServedModel

API_VERSION = "0.13.0"
"""The version of Ollama whose API this is: its clients refuse a server that says less. Our own is at /version."""
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Blocks: it looks at files."""
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    paths = tuple(sorted((role, file.path) for role, file in model.card.files.items()))
    size, family, form = _facts(paths)
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": created,
        "size": size,
        "digest": _digest(model.card),
        "details": {
            "parent_model": "",
            "format": form,
            "family": family,
            "families": [family] if family else [],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def _digest(card: ModelCard) -> str:
    """Equal where the same model is served, in the form that clients expect."""
    return hashlib.sha256(card.checksum().encode()).hexdigest()


@lru_cache(maxsize=256)
def _facts(paths: tuple[tuple[str, str], ...]) -> tuple[int, str, str]:
    """Size of the weights, architecture and format; 0 and empty for what other machines have."""
    files = {role: Path(path) for role, path in paths}
    if gguf := files.get("gguf"):
        return _size(gguf), _architecture_of_gguf(gguf), "gguf"
    config = files.get("config")
    if config is None:
        return 0, "", ""
    try:
        weights = [entry for entry in config.parent.iterdir() if entry.suffix in _WEIGHTS]
        kinds = sorted({entry.suffix for entry in weights}, key=_WEIGHTS.index)
        # A folder may hold the same weights in several formats.
        size = sum(_size(entry) for entry in weights if entry.suffix == kinds[0])
        family = json.loads(config.read_bytes()).get("model_type", "")
    except (OSError, ValueError, AttributeError):
        return 0, "", ""
    return size, str(family), kinds[0][1:] if kinds else ""


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _architecture_of_gguf(path: Path) -> str:
    try:
        return str(read_gguf(path).metadata.get("general.architecture", ""))
    except ModelError:
        return ""
