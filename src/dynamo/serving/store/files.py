"""Uploaded files: each one's content is a file in a folder, its name, size and purpose are a record."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

import msgspec

from dynamo.process.files import create_held, is_held
from dynamo.protocols.errors import CannotStore, HttpError, NotFound
from dynamo.protocols.files import FileObject
from dynamo.serving.store.records import Records

P = ParamSpec("P")
T = TypeVar("T")

KIND = "file"
FOLDER = "files"
MOST = 10_000
"""The most files that are kept."""
PART = ".held.part"
"""Ends the name of a file that is written, and held by its process."""
LEFTOVER_SECONDS = 24 * 3600.0

_file = msgspec.json.Decoder(FileObject)


class Files:
    def __init__(self, records: Records, folder: Path | None, size: int) -> None:
        """Without a folder files are kept as long as the process runs. `size` limits all of them together, in bytes."""
        self._records = records
        self.size = size
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._root = folder

    async def write(self, chunks: AsyncIterator[bytes]) -> str:
        """Put the content in place; returns the id under which to `register` it, or to `discard` it."""
        id = new_id("file-")
        part = self.path(f"{id}{PART}")
        file = await _on_disk(_created, part)
        try:
            size = 0
            async for chunk in chunks:
                size += len(chunk)
                if size > self.size:
                    raise too_large(self.size)
                await _on_disk(file.write, chunk)
            await _on_disk(_put_in_place, file, part, self.path(id))
        finally:
            with contextlib.suppress(OSError):  # it writes what it buffers, which may just have failed
                file.close()
            part.unlink(missing_ok=True)
        return id

    def discard(self, id: str) -> None:
        self.path(id).unlink(missing_ok=True)

    async def register(self, id: str, filename: str, purpose: str) -> FileObject:
        """List a file whose content is in place, and drop the oldest ones if there are too many."""
        size = self.path(id).stat().st_size
        made = FileObject(id=id, bytes=size, created_at=int(time.time()), filename=filename, purpose=purpose)
        try:
            await self._records.put(KIND, id, msgspec.json.encode(made))
        except CannotStore:
            self.discard(id)
            raise
        await self._trim(id)
        return made

    async def get(self, id: str) -> FileObject:
        body = await self._records.get(KIND, id)
        if body is None:
            raise NotFound(f"No such File object: {id[:128]}", "id")
        return _file.decode(body)

    async def all(self) -> list[FileObject]:
        """Oldest first."""
        return [_file.decode(body) for body in await self._records.all(KIND)]

    async def delete(self, id: str) -> None:
        await self.get(id)
        await self._records.delete(KIND, id)
        self.discard(id)

    def path(self, id: str) -> Path:
        return self.folder(FOLDER) / id

    def folder(self, name: str) -> Path:
        """A folder beside that of the files, on the same file system."""
        if self._root is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="dynamo-files-")
            self._root = Path(self._temporary.name)
        folder = self._root / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def close(self) -> None:
        if self._temporary:
            self._temporary.cleanup()

    async def _trim(self, newest: str) -> None:
        files = await self.all()
        total, count = sum(file.bytes for file in files), len(files)
        for file in files:
            if total <= self.size and count <= MOST:
                return
            if file.id != newest:
                total, count = total - file.bytes, count - 1
                with contextlib.suppress(NotFound):  # another process was faster
                    await self.delete(file.id)


async def delete_leftovers(records: Records, root: Path) -> None:
    """Delete what uploads left behind when a server was killed; `records` are those of all owners."""
    known = {_file.decode(body).id for body in await records.all(KIND)}
    await asyncio.to_thread(_delete_unknown, root / FOLDER, known)


def _delete_unknown(folder: Path, known: set[str]) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in known:
            continue
        # A newer one may be an upload to another process, which is listed in a moment.
        if path.stat().st_mtime < time.time() - LEFTOVER_SECONDS or (path.name.endswith(PART) and not is_held(path)):
            path.unlink(missing_ok=True)


async def _on_disk(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(call, *args, **named)
    except OSError as error:
        raise CannotStore(f"The server cannot write to its disk: {error.strerror}.") from error


def _created(path: Path) -> BinaryIO:
    """One that nobody holds was left by a process that was killed."""
    return open(create_held(path.with_suffix(""), path), "wb")


def _put_in_place(file: BinaryIO, part: Path, path: Path) -> None:
    """Once this returns, the file outlives a loss of power too: a record that names it comes later."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def too_large(limit: int) -> HttpError:
    return HttpError(413, f"The file is larger than {limit >> 20} MB, the limit of --stored-files-mb.")


def new_id(prefix: str) -> str:
    """Ids sort by the time they were made."""
    return f"{prefix}{time.time_ns():016x}{uuid.uuid4().hex[:16]}"
