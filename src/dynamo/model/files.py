"""Finds and reads the files of a model folder, by their role in the model card."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dynamo.protocols.errors import ModelError

NAMED_TEMPLATE = "chat_template:"
"""Role prefix of named templates, such as `chat_template:tool_use`."""

_SINGLE = {
    "config": ("config.json",),
    "generation_config": ("generation_config.json",),
    "tokenizer": ("tokenizer.json",),
    "tokenizer_config": ("tokenizer_config.json",),
    "special_tokens_map": ("special_tokens_map.json",),
    "chat_template": ("chat_template.jinja", "chat_template.json"),
}
_TEMPLATE_FOLDERS = ("additional_chat_templates", "chat_templates")


def find_files(folder: Path) -> dict[str, Path]:
    """The files of a model folder that determine how text becomes tokens, by role."""
    found = {}
    for role, names in _SINGLE.items():
        present = [folder / name for name in names if (folder / name).is_file()]
        if present:
            found[role] = present[0]
    for name in _TEMPLATE_FOLDERS:
        for path in sorted((folder / name).glob("*.jinja")):
            found.setdefault(NAMED_TEMPLATE + path.stem, path)
    return found


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def read_text(path: Path) -> str:
    try:
        return read(path).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text: {error}") from error


def read_object(path: Path | None) -> dict[str, Any]:
    """The JSON object in a file; empty if the model has no such file."""
    if path is None:
        return {}
    try:
        # Not msgspec: published configs contain NaN and Infinity, which is not JSON but which Python's json reads.
        value = json.loads(read(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def checksum(path: Path) -> str:
    """Cryptographic, as files are shared by it: no worker can send a file that passes for one of another model."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
