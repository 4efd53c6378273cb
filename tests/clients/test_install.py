"""The installer of the clients, with an npm that does what a registry may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients import install
from clients.conftest import Installed

CLIENT = {"npm": ["a@1"]}


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a script that stands for npm; a test writes it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(install, "FOLDER", tmp_path / "clients")
    monkeypatch.setattr(install, "table", lambda: {"a": CLIENT})
    script = tmp_path / "bin" / "npm"
    script.touch(mode=0o755)
    return script


def test_an_install_that_fails_once_is_repeated(npm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npm.write_text(f"#!/bin/sh\n[ -e {npm}.again ] || {{ touch {npm}.again; exit 1; }}\n")
    install.main([])
    assert "Installed a@1" in capsys.readouterr().out
    assert install.installed("a")


@pytest.mark.parametrize(("optional", "outcome"), [("", pytest.fail.Exception), ("1", pytest.skip.Exception)])
def test_a_client_that_cannot_be_installed_fails_its_tests_unless_it_is_optional(
    npm: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    optional: str,
    outcome: type[BaseException],
) -> None:
    npm.write_text("#!/bin/sh\necho 'npm error notarget'; echo 'No matching version found for a@1.'; exit 1\n")
    monkeypatch.setenv("TEST_OPTIONAL", optional)
    install.main([])
    why = "npm ended with 1: npm error notarget No matching version found for a@1."
    assert f"{'NOT RUN: client' if optional else 'Cannot install'} a ({why})\n" == capsys.readouterr().out
    with pytest.raises(outcome, match="No matching version"):
        Installed("a", npm.parent)


def test_an_install_that_hangs_is_given_up(
    npm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(install, "LIMIT", 0)
    monkeypatch.delenv("TEST_OPTIONAL", raising=False)
    install.main([])
    assert "Cannot install a (npm took more than 0 s)" in capsys.readouterr().out
