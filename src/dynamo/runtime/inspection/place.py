"""Where processes that can be inspected listen: one Unix socket each, in a folder that only their user can enter."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

LONGEST_PATH = 100
"""Bytes of a Unix socket's path: systems allow 104 to 108."""


def inspection_folder(environ: Mapping[str, str]) -> Path:
    """In this user's runtime folder, else one of this user's own in the temporary folder."""
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "dynamo-inspect"
    return Path(environ.get("TMPDIR") or "/tmp") / f"dynamo-inspect-{os.getuid()}"


def socket_path(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.sock"


def open_folder(folder: Path) -> None:
    """Create it if it is missing; raises OSError where it belongs to someone else or others may enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if check_folder(folder).st_mode & 0o077:
        folder.chmod(0o700)


def check_folder(folder: Path) -> os.stat_result:
    """Raises OSError where it is missing or belongs to someone else."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user")
    return about


def processes(folder: Path) -> list[int]:
    """The processes that listen, the lowest number first; changes nothing in the folder."""
    return sorted(int(path.stem) for path in _sockets(folder) if is_listening(path))


def remove_dead(folder: Path) -> None:
    """Remove the sockets that killed processes left."""
    for path in _sockets(folder):
        if not is_listening(path):
            path.unlink(missing_ok=True)


def _sockets(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        check_folder(folder)
        return [path for path in folder.glob("*.sock") if path.stem.isdigit()]
    return []


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError:
            return False
    return True
