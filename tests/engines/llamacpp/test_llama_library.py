"""A library that is not the one we know is refused or named in one sentence."""

from __future__ import annotations

import importlib.metadata
import logging

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp import library
from dynamo.model.gguf import llama_cpp


@pytest.fixture(autouse=True)
def _forget() -> None:
    library.library.cache_clear()


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "PACKAGE", "no_such_package")
    with pytest.raises(EngineError, match="pip install"):
        library.library()


def test_an_unknown_version_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2031.1.1")
    with caplog.at_level(logging.WARNING):
        library.library()
    assert [record.message for record in caplog.records] == [
        "xllamacpp 2031.1.1 was not tried with this build, which knows 2026.10.*"
    ]


def test_parameters_that_are_laid_out_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FLAGS", bytes((9, 9, 9, 9, 9, 9)))
    with pytest.raises(EngineError, match="does not know"):
        library.context_params(256, 256, 4, "f16")
