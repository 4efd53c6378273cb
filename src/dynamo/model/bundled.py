"""The model that comes with this package, so that the first command needs nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dynamo.model.errors import ModelError

NAME = "tiny"


def bundled() -> Path:
    """Its folder; ModelError where this installation was made without it."""
    folder = Path(str(files("dynamo.model") / NAME))
    if not (folder / "config.json").is_file() or not (folder / "tokenizer.json").is_file():
        raise ModelError(f"this installation has no bundled model ({folder}): name a model, such as Qwen/Qwen3-0.6B")
    return folder
