"""Where processes that can be inspected listen: one Unix socket each, in a folder that only their user can enter."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator, Mapping
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
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user")
    if about.st_mode & 0o077:
        folder.chmod(0o700)


def processes(folder: Path) -> Iterator[int]:
    """The processes that listen; sockets that killed processes left are removed."""
    with contextlib.suppress(OSError):
        open_folder(folder)
        for path in sorted(folder.glob("*.sock"), key=lambda path: (len(path.name), path.name)):
            if not path.stem.isdigit():
                continue
            if is_listening(path):
                yield int(path.stem)
            else:
                path.unlink(missing_ok=True)


def remove_dead(folder: Path) -> None:
    """Remove the sockets that killed processes left."""
    for _ in processes(folder):
        pass


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
