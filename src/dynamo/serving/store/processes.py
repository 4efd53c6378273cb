"""The processes that keep their state in one folder: which of them still run."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

FOLDER = "processes"


class LiveProcesses:
    """Each process holds a lock on a file of its own. The kernel releases it when the process ends, however it ends."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder there is only this process."""
        self.own = uuid.uuid4().hex
        self._folder = folder / FOLDER if folder else None
        self._lock = -1
        if self._folder:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.iterdir():
                if not self.is_alive(path.name):
                    path.unlink(missing_ok=True)
            self._lock = self._hold(self._folder)

    def is_alive(self, name: str) -> bool:
        if self._folder is None or name == self.own:
            return True
        try:
            file = os.open(self._folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Shared: two processes that look at the same moment must not take each other for the holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def close(self) -> None:
        if self._folder and self._lock >= 0:
            (self._folder / self.own).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def _hold(self, folder: Path) -> int:
        # Locked before it has its name: no other process finds it without its lock.
        unnamed = folder.with_name(f"{FOLDER}-{self.own}")
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(folder / self.own)
        return lock
