"""Get Debian's Prometheus and Grafana's types into .observability/: unpacked there, so that no rights are needed.

With TEST_OPTIONAL=1 what cannot be had is reported as "NOT RUN: …" and the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".observability"
FAILED = FOLDER / "failed"
TYPES = FOLDER / "types"
TYPES_FAILED = FOLDER / "types-failed"
TYPES_PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
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


def compiler() -> Path:
    """TypeScript's, beside Grafana's types."""
    return TYPES / "node_modules" / ".bin" / "tsc"


def why_no_types() -> str | None:
    if compiler().exists():
        return None
    return TYPES_FAILED.read_text() if TYPES_FAILED.is_file() else "`make test-observability` gets them"


def install_types() -> None:
    """Raises MissingPackage."""
    if compiler().exists():
        return
    TYPES.mkdir(exist_ok=True)
    _run("npm", "install", "--prefix", str(TYPES), "--no-audit", "--no-fund", "--ignore-scripts", *TYPES_PACKAGES)


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
    for what, get, failed in (("Prometheus", install, FAILED), ("Grafana's types", install_types, TYPES_FAILED)):
        failed.unlink(missing_ok=True)
        try:
            get()
        except MissingPackage as error:
            failed.write_text(str(error))
            print(f"{'NOT RUN: the tests with' if is_optional() else 'Cannot get'} {what} ({error})", flush=True)


if __name__ == "__main__":
    main()
