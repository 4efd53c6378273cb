"""Install the clients of clients.toml, each into a folder of its own under .clients/; what is there already stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

TABLE = Path(__file__).with_name("clients.toml")
FOLDER = Path(__file__).parents[2] / ".clients"
UV = FOLDER / "uv" / "bin" / "uv"
"""It installs large trees of packages in a tenth of pip's time."""

Client = dict[str, list[str]]


def table() -> dict[str, Client]:
    return tomllib.loads(TABLE.read_text())


def installed(name: str) -> Path | None:
    """The folder of a client, if what the table asks for is in it."""
    folder = FOLDER / name
    stamp = folder / "installed"
    return folder if stamp.is_file() and stamp.read_text() == repr(table()[name]) else None


def why_missing(name: str) -> str:
    log = FOLDER / f"{name}.failed"
    return log.read_text() if log.is_file() else "`make test-clients` installs it"


def install(name: str, client: Client) -> None:
    """Raises CalledProcessError, or FileNotFoundError on a machine without npm."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if "pip" in client:
        if not UV.exists():
            _run(sys.executable, "-m", "venv", str(FOLDER / "uv"))
            _run(str(UV.with_name("python")), "-m", "pip", "install", "--quiet", "uv")
        _run(str(UV), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder / "venv"))
        _run(str(UV), "pip", "install", "--quiet", "--python", str(folder / "venv"), *client["pip"])
    else:
        (folder / "package.json").write_text('{"type": "module", "private": true}')
        _run("npm", "install", "--no-audit", "--no-fund", "--silent", *client["npm"], cwd=folder)
    (folder / "installed").write_text(repr(client))


def _run(*command: str, cwd: Path | None = None) -> None:
    cache = {"UV_CACHE_DIR": str(FOLDER / "cache"), "UV_LINK_MODE": "hardlink"}
    subprocess.run(command, cwd=cwd, env=os.environ | cache, capture_output=True, text=True, check=True)


def main(names: list[str]) -> None:
    clients = table()
    FOLDER.mkdir(exist_ok=True)
    for name in names or clients:
        if installed(name):
            continue
        packages = " ".join(clients[name].get("pip") or clients[name]["npm"])
        print(f"Installing {packages} ...", end=" ", flush=True)
        began = time.monotonic()
        failed = FOLDER / f"{name}.failed"
        failed.unlink(missing_ok=True)
        try:
            install(name, clients[name])
        except subprocess.CalledProcessError as error:
            failed.write_text(f"{' '.join(error.cmd)}\n{(error.stdout + error.stderr)[-2000:]}")
        except FileNotFoundError as error:
            failed.write_text(f"there is no {error.filename} on this machine")
        print(failed.read_text() if failed.exists() else f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
