"""Which engine runs a model when the user names none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo.cli.run.launch import default_engine
from dynamo.engines.llamacpp import library
from dynamo.model.gguf import llama_cpp
from support.running import run, running
from support.tiny_llama import tiny_llama, tiny_llama_gguf


@pytest.fixture(autouse=True)
def fresh_library() -> Iterator[None]:
    library.library.cache_clear()
    yield
    library.library.cache_clear()


def test_llama_cpp_runs_gguf_files(tmp_path: Path) -> None:
    assert default_engine(str(tiny_llama_gguf(tmp_path / "m.gguf"))).engine == "llamacpp"


def test_mistral_rs_runs_folders_names_and_the_bundled_model(tmp_path: Path) -> None:
    for model in (str(tiny_llama(tmp_path / "m")), "Qwen/Qwen3-0.6B", str(tmp_path / "missing.gguf"), "tiny", None):
        assert default_engine(model).engine == "mistralrs"


def test_mistral_rs_runs_gguf_files_where_llama_cpp_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "PACKAGE", "no_such_package")
    chosen = default_engine(str(tiny_llama_gguf(tmp_path / "m.gguf")))
    assert chosen.engine == "mistralrs"
    assert "no_such_package" in chosen.reason


def test_mistral_rs_runs_gguf_files_where_llama_cpp_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "xllamacpp.abi3.so").write_bytes(b"for another machine")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    chosen = default_engine(str(tiny_llama_gguf(tmp_path / "m.gguf")))
    assert chosen.engine == "mistralrs"
    assert "cannot be used" in chosen.reason


def test_a_server_says_which_engine_it_chose_and_why(tmp_path: Path) -> None:
    with running(tmp_path, "in=http", "--http-port", "0") as server:
        line = server.line_with("no out= given")
        assert line.endswith("using out=mistralrs: the model is not a GGUF file")
        server.url()


def test_a_named_engine_is_the_one_that_runs(tmp_path: Path) -> None:
    file = tiny_llama_gguf(tmp_path / "m.gguf")
    done = run(tmp_path, "out=mistralrs", str(file), input="hello", DYN_LOG="info")
    said = done.stderr.decode()
    assert done.returncode == 0
    assert "with mistralrs" in said
    assert "no out= given" not in said
