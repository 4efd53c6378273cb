"""Install the clients of clients.toml, each into a folder of its own under .clients/; what is there already stays."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

TABLE = Path(__file__).with_name("clients.toml")
FOLDER = Path(__file__).parents[2] / ".clients"


def wanted() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(TABLE.read_text())


def installed(name: str) -> Path | None:
    """The folder of a client, if exactly the versions of the table are in it."""
    folder = FOLDER / name
    stamp = folder / "installed"
    return folder if stamp.is_file() and stamp.read_text() == repr(wanted()[name]) else None


def failure(name: str) -> str:
    """Why the last installation of a client failed, if it did."""
    log = FOLDER / f"{name}.failed"
    return log.read_text() if log.is_file() else "not installed; run `make test-clients`"


def install(name: str, packages: dict[str, list[str]]) -> str | None:
    """Install one client; the reason where that failed."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    commands: list[list[str]]
    if "pip" in packages:
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        commands = [[sys.executable, "-m", "venv", str(folder)], [*pip, *packages["pip"]]]
    elif shutil.which("npm"):
        (folder / "package.json").write_text('{"type": "module", "private": true}')
        commands = [["npm", "install", "--no-audit", "--no-fund", "--silent", *packages["npm"]]]
    else:
        return "there is no npm on this machine"
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(command)}\n{(done.stdout + done.stderr)[-2000:]}"
    (folder / "installed").write_text(repr(packages))
    return None


def main(names: list[str]) -> None:
    table = wanted()
    for name in names or table:
        if installed(name):
            continue
        print(f"Installing {', '.join(*table[name].values())} ...", flush=True)
        began = time.monotonic()
        log = FOLDER / f"{name}.failed"
        log.unlink(missing_ok=True)
        if reason := install(name, table[name]):
            log.write_text(reason)
            print(f"NOT INSTALLED: {name}: {reason}", flush=True)
        else:
            print(f"  {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
