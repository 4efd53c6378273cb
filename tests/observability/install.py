"""Get Debian's Prometheus into .observability/: downloaded and unpacked, so that no rights are needed.

With TEST_OPTIONAL=1 what cannot be had is reported as "NOT RUN: …" and the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".observability"
FAILED = FOLDER / "failed"
LIMIT = 300
"""Seconds for one step; the package has 19 MB."""


class MissingPackage(Exception):
    """Its message says in one line what is missing and why."""


def is_optional() -> bool:
    return os.environ.get("TEST_OPTIONAL", "") not in ("", "0")


def program(name: str) -> str | None:
    own = FOLDER / "usr" / "bin" / name
    return str(own) if own.is_file() else shutil.which(name)


def why_missing() -> str | None:
    """None where all is there."""
    if program("prometheus") and program("promtool"):
        return None
    return FAILED.read_text() if FAILED.is_file() else "`make test-observability` gets it"


def install() -> None:
    """Raises MissingPackage."""
    if program("prometheus") and program("promtool"):
        return
    if os.geteuid() == 0:
        _run("apt-get", "update", "-qq")
    _run("apt-get", "download", "-qq", "prometheus")
    [package] = FOLDER.glob("prometheus_*.deb")
    _run("dpkg", "-x", package.name, ".")
    package.unlink()


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command, cwd=FOLDER, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=True
        )
    except FileNotFoundError:
        raise MissingPackage(f"there is no {command[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise MissingPackage(f"{command[0]} took more than {LIMIT} s") from None
    except subprocess.CalledProcessError as error:
        why = " ".join(f"{error.stdout} {error.stderr}".split())
        raise MissingPackage(f"{command[0]} ended with {error.returncode}: {why[-300:]}") from None


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    FAILED.unlink(missing_ok=True)
    try:
        install()
    except MissingPackage as error:
        FAILED.write_text(str(error))
        print(
            f"{'NOT RUN: make test-observability' if is_optional() else 'Cannot get Prometheus'} ({error})", flush=True
        )


if __name__ == "__main__":
    main()
