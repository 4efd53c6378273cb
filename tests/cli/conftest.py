from __future__ import annotations

from pathlib import Path

import pytest

from support.models import byte_level_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer and a ChatML template, and no weights."""
    return byte_level_model(tmp_path_factory.mktemp("models") / "small-model")


DIES_ONCE = """
import os

async def generate(request):
    try:
        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        yield {"choices": [{"index": 0, "delta": {"content": "answered"}, "finish_reason": "stop"}]}
    else:
        os._exit(1)
"""


@pytest.fixture
def dies_once(tmp_path: Path) -> tuple[str, ...]:
    """The words of two workers of the model 'm': the first one that is asked dies, the other answers."""
    (tmp_path / "engine.py").write_text(DIES_ONCE)
    return ("in=dyn://pool", "out=pystr:engine.py", "--model-name", "m")
