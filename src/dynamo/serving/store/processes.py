"""The processes that keep their state in one folder: which of them still run."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from dynamo.process.files import create_held, is_held

FOLDER = "processes"


class LiveProcesses:
    """Each process holds a lock on a file of its own. The kernel releases it when the process ends, however it ends."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder there is only this process."""
        self.own = uuid.uuid4().hex
        self._folder = folder / FOLDER if folder else None
        self._others: set[str] = set()
        """Those that lived when they were last looked at."""
        self._lock = -1
        if self._folder:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.iterdir():
                if not self.is_alive(path.name):
                    path.unlink(missing_ok=True)
            self._lock = create_held(self._folder.parent / f"{FOLDER}-{self.own}", self._folder / self.own)

    @property
    def shared(self) -> bool:
        """There may be others."""
        return self._folder is not None

    def is_alive(self, name: str) -> bool:
        return self._folder is None or name == self.own or is_held(self._folder / name)

    def others_ended(self) -> bool:
        """Whether another process has ended since the last call."""
        if self._folder is None:
            return False
        alive = set()
        for path in self._folder.iterdir():
            if self.is_alive(path.name):
                alive.add(path.name)
            else:
                path.unlink(missing_ok=True)
                self._others.add(path.name)
        ended, self._others = bool(self._others - alive), alive
        return ended

    def close(self) -> None:
        if self._folder and self._lock >= 0:
            (self._folder / self.own).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
