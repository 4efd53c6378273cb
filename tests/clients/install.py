"""Install the clients of clients.toml, each into a folder of its own under .clients/; what is there already stays.

With TEST_OPTIONAL=1 a client that cannot be installed is reported as "NOT RUN: …" and its tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TABLE = Path(__file__).with_name("clients.toml")
FOLDER = Path(__file__).parents[2] / ".clients"
UV = FOLDER / "uv" / "bin" / "uv"
"""It installs large trees of packages in a tenth of pip's time."""
LIMIT = 180
"""Seconds for one attempt at a client; the largest takes about 30 with a near registry."""
ATTEMPTS = 2
AT_ONCE = 2
"""More only compete for the processors: unpacking takes most of the time."""

Client = dict[str, list[str]]


class InstallError(Exception):
    """Its message says in one line why a client could not be installed."""


def is_optional() -> bool:
    return os.environ.get("TEST_OPTIONAL", "") not in ("", "0")


def table() -> dict[str, Client]:
    return tomllib.loads(TABLE.read_text())


def installed(name: str) -> Path | None:
    """The folder of a client, if what the table asks for is in it."""
    folder = FOLDER / name
    stamp = folder / "installed"
    return folder if stamp.is_file() and stamp.read_text() == repr(table()[name]) else None


def why_missing(name: str) -> str:
    failed = FOLDER / f"{name}.failed"
    return failed.read_text() if failed.is_file() else "`make test-clients` installs it"


def install(name: str, client: Client) -> None:
    """Raises InstallError."""
    deadline = time.monotonic() + LIMIT
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if "pip" in client:
        _run(deadline, folder, str(UV), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder / "venv"))
        _run(deadline, folder, str(UV), "pip", "install", "--quiet", "--python", str(folder / "venv"), *client["pip"])
    else:
        (folder / "package.json").write_text('{"type": "module", "private": true}')
        _run(deadline, folder, "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *client["npm"])
    (folder / "installed").write_text(repr(client))


def install_uv() -> None:
    """Raises InstallError."""
    if not UV.exists():
        deadline = time.monotonic() + LIMIT
        _run(deadline, FOLDER, sys.executable, "-m", "venv", "--clear", str(FOLDER / "uv"))
        _run(deadline, FOLDER, str(UV.with_name("python")), "-m", "pip", "install", "--quiet", "uv")


def _run(deadline: float, folder: Path, *command: str) -> None:
    cache = {"UV_CACHE_DIR": str(FOLDER / "cache"), "UV_LINK_MODE": "hardlink"}
    # Into a file: a grandchild that outlives a killed installer would keep a pipe open.
    with (folder / "install.log").open("w+") as log:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | cache,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=max(1, deadline - time.monotonic()),
                check=False,
            )
        except FileNotFoundError:
            raise InstallError(f"there is no {Path(command[0]).name} on this machine") from None
        except subprocess.TimeoutExpired:
            raise InstallError(f"{Path(command[0]).name} took more than {LIMIT} s") from None
        if done.returncode:
            log.seek(0)
            why = " ".join(log.read().split())
            raise InstallError(f"{Path(command[0]).name} ended with {done.returncode}: {why[:400]}")


def _attempt(install: Callable[[], None]) -> str | None:
    """The reason why no attempt succeeded; None for success."""
    why = None
    for _ in range(ATTEMPTS):
        try:
            install()
        except InstallError as error:
            why = str(error)
        else:
            return None
    return why


def _report(name: str, client: Client) -> None:
    """Install a client, print the outcome, and leave the reason of a failure for the tests."""
    failed = FOLDER / f"{name}.failed"
    failed.unlink(missing_ok=True)
    began = time.monotonic()
    if why := _attempt(lambda: install(name, client)):
        failed.write_text(why)
        print(f"{'NOT RUN: client' if is_optional() else 'Cannot install'} {name} ({why})", flush=True)
    else:
        packages = " ".join(client.get("pip") or client["npm"])
        print(f"Installed {packages} in {time.monotonic() - began:.0f} s", flush=True)


def main(names: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    missing = {name: client for name, client in table().items() if name in (names or table()) and not installed(name)}
    if any("pip" in client for client in missing.values()) and (why := _attempt(install_uv)):
        print(f"Cannot install uv ({why})", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_report, missing, missing.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
