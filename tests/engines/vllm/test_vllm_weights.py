"""New weights are compared with those of the running model before vLLM touches them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines.vllm.weights import checked_weights
from dynamo.model import bundled
from dynamo.protocols.errors import InvalidArgument


def written(folder: Path, header: object) -> Path:
    folder.mkdir(exist_ok=True)
    data = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)
    return folder


def test_the_same_tensors_fit() -> None:
    assert checked_weights(str(bundled()), bundled()) == bundled().resolve()


@pytest.mark.parametrize("new", [{"a": {"shape": [2, 4]}}, {"b": {"shape": [2, 3]}}, {}])
def test_other_tensors_are_named(new: object, tmp_path: Path) -> None:
    running = written(tmp_path / "running", {"__metadata__": {}, "a": {"shape": [2, 3]}})
    with pytest.raises(InvalidArgument, match="do not fit: a is "):
        checked_weights(str(written(tmp_path / "new", new)), running)


@given(data=st.binary(max_size=64))
def test_any_other_bytes_are_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(InvalidArgument):
        checked_weights(str(folder), bundled())
