"""Install what the tests of the page need: Debian's Chromium, and Playwright and axe-core into .ui/.

With TEST_OPTIONAL=1 what cannot be installed is reported as "NOT RUN: …" and the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".ui"
PACKAGES = FOLDER / "python"
AXE = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
FAILED = FOLDER / "failed"
PLAYWRIGHT = "playwright==1.65.0"
AXE_CORE = "axe-core@4.14.0"
LIMIT = 400
"""Seconds for one installation; Chromium takes about 40 with a near registry."""


class InstallError(Exception):
    """Its message says in one line what is missing and why."""


def is_optional() -> bool:
    return os.environ.get("TEST_OPTIONAL", "") not in ("", "0")


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def why_missing() -> str | None:
    """None where all is there."""
    if chromium() and PACKAGES.is_dir() and AXE.is_file():
        return None
    return FAILED.read_text() if FAILED.is_file() else "`make test-ui` installs it"


def install() -> None:
    """Raises InstallError."""
    if not chromium():
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise InstallError("there is no Chromium, and only root can install Debian's")
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium")
    if not PACKAGES.is_dir():
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER / "new"), PLAYWRIGHT)
        (FOLDER / "new").rename(PACKAGES)
    if not AXE.is_file():
        _run("npm", "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", "--loglevel=error", AXE_CORE)


def _run(*command: str) -> None:
    # Into a file: a grandchild that outlives a killed installer would keep a pipe open.
    with (FOLDER / "install.log").open("w+") as log:
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT, check=True
            )
        except FileNotFoundError:
            raise InstallError(f"there is no {command[0]} on this machine") from None
        except subprocess.TimeoutExpired:
            raise InstallError(f"{command[0]} took more than {LIMIT} s") from None
        except subprocess.CalledProcessError as error:
            log.seek(0)
            why = " ".join(log.read().split())
            raise InstallError(f"{Path(command[0]).name} ended with {error.returncode}: {why[-300:]}") from None


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    FAILED.unlink(missing_ok=True)
    try:
        install()
    except InstallError as error:
        FAILED.write_text(str(error))
        print(f"{'NOT RUN: make test-ui' if is_optional() else 'Cannot install'} ({error})", flush=True)


if __name__ == "__main__":
    main()
