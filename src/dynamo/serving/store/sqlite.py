"""Records in a SQLite file: they survive the process, and the processes of one machine share them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dynamo.protocols.errors import CannotStore, StartError
from dynamo.serving.store.records import Change, Limits

T = TypeVar("T")

BUSY_SECONDS = 30.0
"""How long a write waits for those of other processes."""
_VERSION = 2
"""Changes with the tables and with what ids mean; since 2 an id begins with its owner."""
_SCHEMA = """
CREATE TABLE records (
    kind TEXT NOT NULL, id TEXT NOT NULL, written INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (kind, id));
CREATE INDEX records_by_age ON records (kind, written);
CREATE TABLE totals (kind TEXT PRIMARY KEY, count INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE TRIGGER added AFTER INSERT ON records BEGIN
    INSERT INTO totals VALUES (new.kind, 1, new.size)
    ON CONFLICT (kind) DO UPDATE SET count = count + 1, size = size + new.size;
END;
CREATE TRIGGER removed AFTER DELETE ON records BEGIN
    UPDATE totals SET count = count - 1, size = size - old.size WHERE kind = old.kind;
END;
"""
_OWNER = "substr({id}, 1, instr({id}, '/'))"
"""The part of an id that is its owner's, with the slash."""
_SHARES = f"""
CREATE TABLE shares (
    kind TEXT NOT NULL, owner TEXT NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL, PRIMARY KEY (kind, owner));
CREATE INDEX records_by_owner ON records (kind, {_OWNER.format(id="id")}, written);
INSERT INTO shares
    SELECT kind, {_OWNER.format(id="id")}, count(*), sum(size) FROM records GROUP BY kind, {_OWNER.format(id="id")};
CREATE TRIGGER share_added AFTER INSERT ON records BEGIN
    INSERT INTO shares VALUES (new.kind, {_OWNER.format(id="new.id")}, 1, new.size)
    ON CONFLICT (kind, owner) DO UPDATE SET count = count + 1, size = size + new.size;
END;
CREATE TRIGGER share_removed AFTER DELETE ON records BEGIN
    UPDATE shares SET count = count - 1, size = size - old.size
    WHERE kind = old.kind AND owner = {_OWNER.format(id="old.id")};
END;
"""
"""Added to files that have none: servers without it write the same files, and keep it right."""


class SqliteRecords:
    """All calls run in one thread of its own, so that a slow disk does not stop the event loop."""

    def __init__(self, path: Path, limits: Mapping[str, Limits]) -> None:
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "records")
        try:
            self._db = self._thread.submit(_open, path).result()
            self._path, self._file = path, _identity(path)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._thread.shutdown()
            raise StartError(f"cannot keep state in {path}: {error}; see --state-dir") from error

    async def put(self, kind: str, id: str, body: bytes) -> None:
        def put() -> None:
            with self._transaction():
                self._put(kind, id, body)

        await self._run(put)

    async def get(self, kind: str, id: str) -> bytes | None:
        return await self._run(lambda: self._get(kind, id))

    async def update(self, kind: str, id: str, change: Change) -> bytes | None:
        def update() -> bytes | None:
            with self._transaction():
                body = self._get(kind, id)
                if body is None:
                    return None
                body = change(body)
                self._put(kind, id, body)
                return body

        return await self._run(update)

    async def delete(self, kind: str, id: str) -> bool:
        def delete() -> bool:
            with self._transaction():
                return self._delete(kind, id)

        return await self._run(delete)

    async def all(self, kind: str, prefix: str = "") -> list[bytes]:
        query = "SELECT body FROM records WHERE kind = ? AND substr(id, 1, ?) = ? ORDER BY id"

        def select() -> list[bytes]:
            return [body for (body,) in self._db.execute(query, (kind, len(prefix), prefix))]

        return await self._run(select)

    async def close(self) -> None:
        await self._run(self._db.close)
        self._thread.shutdown()

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if _identity(self._path) != self._file:
            # What is written to a file without a name is lost with this process.
            raise CannotStore(f"The server's state is gone: {self._path} was deleted or replaced. Restart the server.")
        try:
            # IMMEDIATE: a transaction that reads before it writes must not find that another process wrote in between.
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:  # SQLite itself may have rolled back
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise CannotStore(f"The server cannot write to its disk: {error}.") from error
            raise

    def _get(self, kind: str, id: str) -> bytes | None:
        row = self._db.execute("SELECT body FROM records WHERE kind = ? AND id = ?", (kind, id)).fetchone()
        return row and bytes(row[0])

    def _put(self, kind: str, id: str, body: bytes) -> None:
        self._delete(kind, id)
        # Later than all others, also when the clock was set back.
        (newest,) = self._db.execute("SELECT max(written) FROM records WHERE kind = ?", (kind,)).fetchone()
        written = max(time.time_ns(), (newest or 0) + 1)
        self._db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", (kind, id, written, len(body), body))
        limits = self._limits.get(kind)
        while limits and (exceeded := self._exceeded(kind, limits)):
            owner = f"SELECT owner FROM shares WHERE kind = ? ORDER BY {exceeded} DESC, owner = ? DESC LIMIT 1"
            (most,) = self._db.execute(owner, (kind, id[: id.find("/") + 1])).fetchone()
            oldest = f"SELECT id FROM records WHERE kind = ? AND {_OWNER.format(id='id')} = ? ORDER BY written LIMIT 1"
            self._delete(kind, self._db.execute(oldest, (kind, most)).fetchone()[0])

    def _exceeded(self, kind: str, limits: Limits) -> str:
        """What the kind has too much of, if anything."""
        count, size = self._db.execute("SELECT count, size FROM totals WHERE kind = ?", (kind,)).fetchone()
        if count > limits.count:
            return "count"
        return "size" if count and size > limits.size else ""

    def _delete(self, kind: str, id: str) -> bool:
        return self._db.execute("DELETE FROM records WHERE kind = ? AND id = ?", (kind, id)).rowcount > 0


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open(path: Path) -> sqlite3.Connection:
    # Processes that start together must not create the tables or change the journal's mode at the same time.
    with open(os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                age = "an earlier" if version < _VERSION else "a later"
                raise ValueError(
                    f"{age} version of this server wrote it (format {version}, not {_VERSION}): "
                    "move it away, or choose another folder"
                )
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'shares'").fetchone():
                db.executescript(f"BEGIN IMMEDIATE; {_SHARES} COMMIT;")
        except BaseException:
            db.close()
            raise
        return db
