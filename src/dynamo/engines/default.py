"""The engine of a model for which the user names none."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from dynamo.engines.base import EngineError
from dynamo.engines.catalog import LLAMACPP, MISTRALRS


class DefaultEngine(Struct, frozen=True):
    engine: str
    reason: str


def default_engine(model: str | None) -> DefaultEngine:
    """llama.cpp for a GGUF file where it can be loaded, mistral.rs for everything else."""
    if model is None or not Path(model).expanduser().is_file():
        return DefaultEngine(MISTRALRS.name, "the model is not a GGUF file")
    # Only what will run is imported.
    from dynamo.engines.llamacpp.library import library

    try:
        library()
    except EngineError as error:
        return DefaultEngine(MISTRALRS.name, f"llama.cpp, which is faster with GGUF files, is not here: {error}")
    return DefaultEngine(LLAMACPP.name, "the model is a GGUF file")
