"""Segments as files of a folder, within a limit of bytes; they survive a restart.

A file is written beside its place and renamed, so a reader finds a whole one or none. A file is believed only if its
checksum fits; any other is a miss and is removed. The names of blocks are made with a secret that lies beside them. A
lock keeps two processes out of one folder: each would count its own files only, and exceed the limit together.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from dynamo.kv.block_names import NAME_BYTES, SECRET_BYTES
from dynamo.kv.messages import KvChange
from dynamo.kv.tiers.segment import DamagedSegment, KvSegment, SegmentHeader, from_bytes, header_bytes, read_header

_SUFFIX, _UNFINISHED = ".kv", ".part"


class TierFolderError(Exception):
    """The folder cannot be used; the message names it and says why."""


class FolderTier:
    """`put`, `read` and `remove_files` do I/O and may be called by several threads; all else is quick."""

    def __init__(
        self, folder: Path, limit: int, blocks: int, changed: Callable[[KvChange], None] = lambda change: None
    ) -> None:
        """Take the folder over, with what an earlier process left in it; segments have at most `blocks` blocks.

        `changed` is called with each change of the blocks held, by any thread, one at a time.
        """
        self.folder = folder
        self.limit = limit
        self.used = 0
        self._headers: OrderedDict[int, SegmentHeader] = OrderedDict()
        """The least recently used first."""
        self._guard = threading.Lock()
        self._blocks = blocks
        self._changed = changed
        self._lock = _locked(folder)
        self.secret = b""
        """Makes the names of blocks; a folder whose secret is lost, or was readable by others, starts empty."""
        try:
            self.secret = _secret(folder / "secret") or self._begin_anew(folder / "secret")
            self._scan()
        except OSError as error:
            self.close()
            raise TierFolderError(f"{folder}: {error.strerror or error}") from error

    def __contains__(self, key: int) -> bool:
        return key in self._headers

    def __len__(self) -> int:
        return len(self._headers)

    def listen(self, changed: Callable[[KvChange], None]) -> None:
        """Call `changed` for all that is held, and for each change from now on."""
        with self._guard:
            self._changed = changed
            for header in self._headers.values():
                changed(header.stored())

    def put(self, segment: KvSegment) -> bool:
        """Write a segment; False if it is held already, or larger than the limit.

        Raises OSError when it cannot be written: then what gave way is gone, and nothing else has changed.
        """
        with self._guard:
            if segment.key in self._headers:
                self._headers.move_to_end(segment.key)
                return False
            if segment.size > self.limit:
                return False
            evicted = []
            while self.used + segment.size > self.limit:
                evicted.append(self._forget(next(iter(self._headers))))
        self.remove_files(evicted)
        path = self._path(segment.key)
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                file.writelines(segment.to_bytes())
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        with self._guard:
            self._remember(segment.header)
        return True

    def read(self, key: int) -> KvSegment | None:
        """The segment, if its file is whole; otherwise it is forgotten and its file removed. Raises OSError."""
        path = self._path(key)
        try:
            segment = from_bytes(path.read_bytes())
            if segment.key != key:
                raise DamagedSegment("another segment")
        except (DamagedSegment, FileNotFoundError):
            with self._guard:
                if key in self._headers:
                    self._forget(key)
            path.unlink(missing_ok=True)
            return None
        with self._guard:
            if key in self._headers:
                self._headers.move_to_end(key)
        # A restart finds the order of use in the times of the files.
        os.utime(path)
        return segment

    def forget_all(self) -> list[int]:
        """Hold nothing from now on, without a word to `changed`; `remove_files` then removes the files."""
        with self._guard:
            keys = list(self._headers)
            self._headers.clear()
            self.used = 0
        return keys

    def remove_files(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.close()

    def _remember(self, header: SegmentHeader) -> None:
        self._headers[header.key] = header
        self.used += header.size
        self._changed(header.stored())

    def _forget(self, key: int) -> int:
        header = self._headers.pop(key)
        self.used -= header.size
        self._changed(header.removed())
        return key

    def _path(self, key: int) -> Path:
        return self.folder / f"{key:0{2 * NAME_BYTES}x}{_SUFFIX}"

    def _begin_anew(self, path: Path) -> bytes:
        """Make a secret, and remove the segments, whose names nobody can make any more."""
        for entry in os.scandir(self.folder):
            if entry.name.endswith(_SUFFIX):
                os.unlink(entry)
        secret = secrets.token_bytes(SECRET_BYTES)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        return secret

    def _scan(self) -> None:
        found: list[tuple[int, SegmentHeader]] = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(_UNFINISHED):
                os.unlink(entry)
            elif entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                try:
                    with open(entry, "rb") as file:
                        header = read_header(file.read(header_bytes(self._blocks)), about.st_size)
                    if self._path(header.key).name != entry.name:
                        raise DamagedSegment("another segment")
                except DamagedSegment:
                    os.unlink(entry)
                    continue
                found.append((about.st_mtime_ns, header))
        for _, header in sorted(found, key=lambda row: row[0]):
            self._remember(header)
        while self.used > self.limit:
            self.remove_files([self._forget(next(iter(self._headers)))])


def _secret(path: Path) -> bytes | None:
    """The secret, if it is whole and this user's alone."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            about, secret = os.fstat(file.fileno()), file.read(SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
    private = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return secret if private and len(secret) == SECRET_BYTES else None


def _locked(folder: Path) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_uid != os.geteuid():
            # Its owner could put states into it that answer our prompts.
            raise TierFolderError(f"{folder} belongs to another user")
        if folder.stat().st_mode & 0o022:
            raise TierFolderError(f"{folder} can be written by other users: chmod 700 {folder}")
        lock = (folder / "lock").open("ab")
    except OSError as error:
        raise TierFolderError(f"{folder}: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise TierFolderError(f"{folder} is in use by another worker: give each worker a folder of its own") from error
    return lock
