from __future__ import annotations

from pathlib import Path

import pytest

from support.models import byte_level_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer and a ChatML template, and no weights."""
    return byte_level_model(tmp_path_factory.mktemp("models") / "small-model")
