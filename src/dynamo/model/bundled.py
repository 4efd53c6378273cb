"""The model that comes with this package, so that a first command needs no download."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dynamo.model.errors import ModelError

NAME = "tiny"
_FILES = ("config.json", "tokenizer.json", "model.safetensors")


def bundled() -> Path:
    """The model's folder; raises ModelError if this installation does not include it."""
    folder = Path(str(files("dynamo.model") / NAME))
    if not all((folder / name).is_file() for name in _FILES):
        raise ModelError(f"this installation has no bundled model ({folder}): name a model, such as Qwen/Qwen3-0.6B")
    return folder
