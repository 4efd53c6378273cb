"""The folder behind file discovery: leases are locked files, records are files that name their lease.

    leases/<hex id>       its owner holds an exclusive flock on it for life; the kernel drops it with the process
    records/<file name>   msgpack {key, lease, value}; the name is the percent-encoded key
    tmp/                  where both are written before they are renamed into place
    lock                  held during a change, so that a check and the write that follows it are atomic

Everything here blocks; every method may be called from any thread.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from dynamo.process.files import EXHAUSTED, READ, Stamp, create_held, file_stamp, is_held
from dynamo.runtime.discovery.base import DiscoveryError, check_key

log = logging.getLogger("dynamo.runtime.discovery.file")

LARGEST_RECORD = 64 * 1024 * 1024
LONGEST_NAME = 200  # of the 255 bytes most file systems allow
STALE_AFTER = 3600.0  # seconds until a file left in tmp/ by a killed process is removed

_LEASE = re.compile(r"[0-9a-f]{16}")


class Record(msgspec.Struct, frozen=True):
    key: str
    lease: str
    value: bytes


# Made here and not on first use: msgspec crashes when the threads of two runtimes prepare one type at once.
_RECORD = msgspec.msgpack.Decoder(Record)


def default_folder(environ: Mapping[str, str]) -> Path:
    """In this user's runtime folder, else one of this user's own in the temporary folder."""
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "dynamo"
    return Path(environ.get("TMPDIR") or "/tmp") / f"dynamo-{os.getuid()}"


def file_name(key: str) -> str:
    """The key, percent-encoded; a long one is cut and made unique by its digest (the record holds it in full)."""
    name = quote(key, safe="").replace(".", "%2E")
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{name[: LONGEST_NAME - 65]}+{digest}"  # quote() leaves no plus sign in a short name


class Folder:
    """One participant: its lease, its own records, and what it read of the others'."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.lease = secrets.token_hex(8)
        self._leases, self._records, self._tmp = (self.root / name for name in ("leases", "records", "tmp"))
        self._lock_fd: int | None = None
        self._own: dict[str, bytes] = {}
        self._stamps: dict[str, Stamp] = {}
        self._read: dict[str, tuple[Stamp, Record | None]] = {}
        self._listed_at = -1
        self._mutex = threading.Lock()

    def open(self) -> None:
        """Make the folder if it is missing and take the lease; raises `DiscoveryError` when it cannot be used."""
        with self._mutex:
            try:
                self._make()
                self._take_lease()
            except OSError as why:
                raise self._unusable(why.strerror or str(why)) from why
        _close_in_forked_children(self)

    def close(self) -> None:
        with self._mutex:
            if self._lock_fd is None:
                return
            with suppress(OSError), self._locked():
                for key in self._own:
                    self._remove_own(key)
                (self._leases / self.lease).unlink(missing_ok=True)
            self._own.clear()
            self.release_lease()

    def release_lease(self) -> None:
        """Close the lease's file, which releases the lock that is the lease."""
        if self._lock_fd is not None:
            fd, self._lock_fd = self._lock_fd, None
            os.close(fd)

    def put(self, key: str, value: bytes) -> None:
        with self._mutex:
            if self._lock_fd is None:
                raise DiscoveryError("this discovery is closed")
            self._own[key] = value
            try:
                try:
                    self._write(key, value)
                except FileNotFoundError:  # the folder was deleted
                    self._make()
                    if not self.in_place():
                        self._take_lease()
                    self._write(key, value)
            except OSError as why:
                raise self._unusable(why.strerror or str(why)) from why

    def delete(self, key: str) -> None:
        with self._mutex:
            if self._own.pop(key, None) is not None:
                with suppress(FileNotFoundError), self._locked():
                    self._remove_own(key)

    def scan(self) -> dict[str, bytes]:
        """All live records, by key. Dead ones are removed on the way. Raises OSError if they cannot be looked at."""
        with self._mutex:
            alive: dict[str, bool] = {self.lease: True}
            live: dict[str, bytes] = {}
            dead: list[Record] = []
            for record in self._listed():
                if record.lease not in alive:
                    alive[record.lease] = self._is_held(record.lease)
                if alive[record.lease]:
                    live[record.key] = record.value
                else:
                    dead.append(record)
            if dead:
                with suppress(OSError):
                    self._remove_dead(dead)
            return live

    def has_changed(self) -> bool:
        """Whether records may have come or gone since the last `scan`."""
        try:
            changed_at = os.stat(self._records).st_mtime_ns
        except OSError:
            return True
        # Two changes within one tick of the file system's clock leave the same time: a recent time proves nothing.
        return changed_at != self._listed_at or time.time_ns() - changed_at < 2_000_000_000

    def in_place(self) -> bool:
        """Whether the folder is complete and still has our lease."""
        fd = self._lock_fd
        try:
            return (
                fd is not None
                and os.path.samestat(os.fstat(fd), os.lstat(self._leases / self.lease))
                and self._records.is_dir()
                and self._tmp.is_dir()
            )
        except OSError:
            return False

    def mend(self) -> bool:
        """Restore what others deleted: folder, lease, our records. True if the folder or the lease was gone."""
        with self._mutex:
            if self._lock_fd is None:
                return False
            wiped = not self.in_place()
            if wiped:
                self._make()
                self._take_lease()
            for key, value in list(self._own.items()):
                if _stamp(self._records / file_name(key)) != self._stamps.get(key):
                    with self._locked():
                        current = self._live_record(key)
                        if current and current.lease != self.lease:
                            del self._own[key]  # someone alive took it over
                        else:
                            self._write_locked(key, value)
            return wiped

    def sweep(self) -> None:
        """Remove unfinished files of killed processes, and leases that no process holds."""
        with suppress(OSError):
            for entry in os.scandir(self._tmp):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_AFTER:
                        os.unlink(entry.path)
            for entry in os.scandir(self._leases):
                if _LEASE.fullmatch(entry.name) and entry.name != self.lease and not self._is_held(entry.name):
                    with suppress(OSError):
                        os.unlink(entry.path)

    def _make(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as why:
            raise self._unusable(f"{why.filename} is not a directory") from why
        for status in (os.lstat(self.root), os.stat(self.root)):
            if status.st_uid != os.geteuid():
                raise self._unusable(f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
        for folder in (self._leases, self._records, self._tmp):
            folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.root, self._leases, self._records, self._tmp):
            if os.stat(folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise DiscoveryError(
                    f"cannot keep discovery records in {self.root}: other users can write to {folder} and could pass "
                    f"for workers; run chmod -R go-w {self.root}, or set DYN_FILE_KV to a folder of your own"
                )
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _unusable(self, why: str) -> DiscoveryError:
        return DiscoveryError(
            f"cannot keep discovery records in {self.root}: {why}; set DYN_FILE_KV to a folder you can write to"
        )

    def _take_lease(self) -> None:
        fd = create_held(self._tmp / f"{self.lease}.{secrets.token_hex(4)}", self._leases / self.lease)
        self.release_lease()
        self._lock_fd = fd

    def _is_held(self, lease: str) -> bool:
        return is_held(self._leases / lease)

    @contextmanager
    def _locked(self, patience: float = 5.0) -> Iterator[None]:
        """Hold the folder's lock. The wait is limited: its holder may be a suspended process."""
        deadline = time.monotonic() + patience
        while True:
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # If the folder was deleted meanwhile, so was this file, and others lock the new one.
                if os.path.samestat(os.fstat(fd), os.lstat(self.root / "lock")):
                    yield
                    return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BlockingIOError(errno.EAGAIN, "another process keeps it locked") from None
            finally:
                os.close(fd)
            time.sleep(0.002)

    def _write(self, key: str, value: bytes) -> None:
        with self._locked():
            self._write_locked(key, value)

    def _write_locked(self, key: str, value: bytes) -> None:
        unfinished = self._tmp / secrets.token_hex(8)
        place = self._records / file_name(key)
        try:
            unfinished.write_bytes(msgspec.msgpack.encode(Record(key, self.lease, value)))
            os.rename(unfinished, place)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        if (stamp := _stamp(place)) is not None:
            self._stamps[key] = stamp

    def _remove_own(self, key: str) -> None:
        self._stamps.pop(key, None)
        place = self._records / file_name(key)
        record = self._read_record(place, _stamp(place))
        if record and record.lease == self.lease:
            place.unlink(missing_ok=True)

    def _live_record(self, key: str) -> Record | None:
        place = self._records / file_name(key)
        record = self._read_record(place, _stamp(place))
        return record if record and (record.lease == self.lease or self._is_held(record.lease)) else None

    def _remove_dead(self, dead: list[Record]) -> None:
        with self._locked(patience=0.0):
            for record in dead:
                place = self._records / file_name(record.key)
                there = self._read_record(place, _stamp(place))
                if there and there.lease == record.lease and not self._is_held(record.lease):
                    place.unlink(missing_ok=True)
            for lease in {record.lease for record in dead}:
                if not self._is_held(lease):
                    (self._leases / lease).unlink(missing_ok=True)

    def _listed(self) -> list[Record]:
        self._listed_at, entries = -1, list[os.DirEntry[str]]()
        try:
            # Read before the listing: after a change during it the next check sees a difference.
            listed_at = os.stat(self._records).st_mtime_ns
            entries = list(os.scandir(self._records))
        except OSError as why:
            if why.errno in EXHAUSTED:
                raise
            listed_at = -1
        read: dict[str, tuple[Stamp, Record | None]] = {}
        for entry in entries:
            stamp = _stamp(entry.path)
            if stamp is None:
                continue
            known = self._read.get(entry.name)
            if known and known[0] == stamp:
                read[entry.name] = known
            else:
                record = self._read_record(Path(entry.path), stamp)
                if record is None and _stamp(entry.path) == stamp:
                    log.warning("ignoring %s: it is not a discovery record of this user", ascii(entry.path))
                read[entry.name] = (stamp, record)
        self._read, self._listed_at = read, listed_at
        return [record for _, record in read.values() if record]

    def _read_record(self, place: Path, stamp: Stamp | None) -> Record | None:
        if stamp is None or stamp[2] > LARGEST_RECORD:
            return None
        try:
            with os.fdopen(os.open(place, READ), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    return None
                record = _RECORD.decode(file.read(LARGEST_RECORD))
            check_key(record.key)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as why:
            if isinstance(why, OSError) and why.errno in EXHAUSTED:
                raise
            return None
        return record if _LEASE.fullmatch(record.lease) and file_name(record.key) == place.name else None


def _stamp(path: Path | str) -> Stamp | None:
    return file_stamp(path, follow_symlinks=False)


def _close_in_forked_children(folder: Folder) -> None:
    # A forked child inherits the open lease file, and would keep a killed parent's lease alive.
    reference = weakref.ref(folder)

    def release_lease() -> None:
        if inherited := reference():
            inherited.release_lease()

    os.register_at_fork(after_in_child=release_lease)
