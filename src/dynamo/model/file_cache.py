"""A folder of model files that came from workers, named by their checksums and shared by processes."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
import time
from pathlib import Path

from dynamo.model.files import checksum
from dynamo.protocols.card import CardFile
from dynamo.protocols.errors import FileError, ModelError

log = logging.getLogger(__name__)

KEEP_SECONDS = 3600
"""A file used within this time is not evicted: another process may be about to read it."""
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = "."


class FileCache:
    """Blocks: call it in a thread. Beyond `limit` bytes the files that were not used for longest are removed."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit

    def find(self, file: CardFile) -> Path | None:
        """The cached copy. One that is damaged is removed and counts as absent."""
        path = self._path(file)
        if not os.path.isfile(path):
            return None
        try:
            intact = checksum(path) == file.checksum
        except ModelError as error:
            log.warning("cannot use a cached model file: %s", error)
            return None
        if not intact:
            log.warning("removing %s from the cache of model files: it is damaged", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):  # a cache that may only be read is as good
            os.utime(path)
        return path

    def put(self, file: CardFile, data: bytes | bytearray) -> Path:
        """Store what `file` names, all of it or nothing; ValueError if `data` is something else."""
        path = self._path(file)
        if hashlib.sha256(data).hexdigest() != file.checksum:
            raise ValueError("its checksum is not the one on the model card")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(path, data)
            self._evict(path)
        except OSError as error:
            raise FileError(
                f"cannot store model files in {self.folder}: {error.strerror} "
                "(DYN_MODEL_CACHE names the folder to use instead)"
            ) from error
        return path

    def _path(self, file: CardFile) -> Path:
        # The checksum comes from another process: only one of the right form may become part of a path.
        if not _CHECKSUM.fullmatch(file.checksum):
            raise FileError(f"the model card has a malformed checksum: {file.checksum[:64]!r}")
        # A chat template is read as JSON or as text by its suffix.
        return self.folder / (file.checksum + (".json" if file.path.endswith(".json") else ""))

    def _write(self, path: Path, data: bytes | bytearray) -> None:
        number, name = tempfile.mkstemp(dir=self.folder, prefix=_UNFINISHED)
        try:
            with os.fdopen(number, "wb") as unfinished:
                unfinished.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _evict(self, newest: Path) -> None:
        """Remove the longest unused files beyond the limit, and what writers that were killed left behind."""
        expired = time.time() - KEEP_SECONDS
        total, old = 0, []
        for entry in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process evicts too
                status = entry.stat()
                if entry.name.startswith(_UNFINISHED) and status.st_mtime < expired:
                    entry.unlink()
                    continue
                total += status.st_size
                if status.st_mtime < expired and entry != newest:
                    old.append((status.st_mtime, status.st_size, entry))
        for _, size, entry in sorted(old):
            if total <= self._limit:
                return
            entry.unlink(missing_ok=True)
            total -= size
