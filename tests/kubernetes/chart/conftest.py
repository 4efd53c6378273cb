"""Helm, with its files in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _helm_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for each in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HELM_{each}_HOME", str(tmp_path / "helm"))
