"""Downloads one file: goes on where an earlier attempt ended, checks what came, and shares the work with others."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dynamo.model.files import checksum
from dynamo.protocols.errors import ModelError

log = logging.getLogger(__name__)

_SECONDS = 60
"""How long a server may be silent."""
_PIECE = 1 << 20
_LARGEST_PAGE = 8 << 20


class DownloadMeter(Protocol):
    def __call__(self, done: int, total: int | None) -> None: ...


Progress = Callable[[str], AbstractContextManager[DownloadMeter]]
"""Shows how far the download of what it is given, in words, has come."""


class PartIdentity(Struct, frozen=True):
    """What an unfinished file is a part of."""

    identity: str


def download_file(url: str, to: Path, progress: Progress, *, sha256: str | None = None, room: int = 0) -> Path:
    """Download to `to`, unless it is there; blocks, and raises ModelError.

    Two processes that want the same file download it once. A file whose checksum is not `sha256`, or not the one that
    the server names, is removed. `room` is how many bytes must be free beside it.
    """
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.exists():
            return to
        with held(_part_of(to)) as part:
            if to.exists():  # another process was faster
                _part_of(to).unlink()
            else:
                _Download(url, to, sha256, room).run(part, progress)
                os.replace(_part_of(to), to)
                _note_of(to).unlink(missing_ok=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelError(
                f"the disk of {to.parent} is full; what came of {to.name} is kept: make room and pull it again"
            ) from error
        raise ModelError(f"cannot write {to}: {error.strerror or error}") from error
    return to


def check_space(folder: Path, needed: int, what: str) -> None:
    """A ModelError if `folder` has not that many bytes free. Nobody is asked where the system cannot say."""
    place = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return
    if free < needed:
        raise ModelError(
            f"{what} needs {in_words(needed)}, but {folder} has {in_words(free)} free: `dynamo list` shows the models "
            "that are here, `dynamo rm NAME` removes one"
        )


def in_words(size: float) -> str:
    units = ["TB", "GB", "MB", "kB", "bytes"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop()
    unit = units[-1]
    return f"{size:.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"


def _part_of(to: Path) -> Path:
    return to.with_name(f".{to.name}.part")


def _note_of(to: Path) -> Path:
    return to.with_name(f".{to.name}.part.json")


@contextmanager
def held(path: Path) -> Iterator[BinaryIO]:
    """The file of that name, made if need be, held by this process alone; waits for another that holds it."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.warning("another process is downloading into %s: waiting for it", path.parent)
                fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever held it may have renamed it.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return


class _Download:
    def __init__(self, url: str, to: Path, sha256: str | None, room: int) -> None:
        self._url = url
        self._to = to
        self._sha256 = sha256
        self._room = room
        self._named: str | None = None
        """The checksum that the server names."""

    def run(self, part: BinaryIO, progress: Progress) -> None:
        with progress(self._to.name) as meter:
            while True:
                before = part.seek(0, os.SEEK_END)
                total = self._attempt(part, meter)
                size = part.seek(0, os.SEEK_END)
                if total is None or size == total:
                    break
                if size <= before:
                    raise ModelError(
                        f"{_host(self._url)} ended after {in_words(size)} of {in_words(total)} of {self._to.name}; "
                        "what came is kept: pull it again to go on from there"
                    )
        part.flush()
        os.fsync(part.fileno())
        self._verify()

    def _attempt(self, part: BinaryIO, meter: DownloadMeter) -> int | None:
        """Append what the server sends until it ends or breaks; returns the size of the whole file, if it is known."""
        begun, identity = part.tell(), self._identity()
        headers = {"Accept-Encoding": "identity"}
        if begun and identity:
            headers |= {"Range": f"bytes={begun}-"}
            if not self._sha256:
                headers["If-Range"] = identity
        with _open(self._url, headers) as answer:
            if answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                total = _after_slash(answer.headers["Content-Range"])
            elif answer.status in (200, 206):
                if answer.status == 206:  # another range than was asked for
                    raise ModelError(f"{_host(self._url)} sends other parts of {self._to.name} than it is asked for")
                part.seek(0)
                part.truncate()
                begun, total = 0, _number(answer.headers.get("Content-Length"))
            else:  # 416: what is here is longer than the file
                part.seek(0)
                part.truncate()
                return 0 if _after_slash(answer.headers.get("Content-Range", "")) == 0 else self._attempt(part, meter)
            self._note(answer)
            if total is not None:
                check_space(self._to.parent, total - begun + self._room, self._to.name)
            done = begun
            try:
                while piece := answer.read(_PIECE):
                    part.write(piece)
                    done += len(piece)
                    meter(done, total)
            except (HTTPException, TimeoutError, ConnectionError):
                if total is None:
                    raise ModelError(
                        f"{_host(self._url)} broke off and did not say how long {self._to.name} is: pull it again"
                    ) from None
            part.flush()
            return total

    def _identity(self) -> str | None:
        """What the unfinished file is a part of, if that can be continued."""
        try:
            identity = msgspec.json.decode(_note_of(self._to).read_bytes(), type=PartIdentity).identity
        except (OSError, msgspec.DecodeError):
            return None
        return identity if self._sha256 in (None, identity) else None

    def _note(self, answer: HTTPResponse) -> None:
        tag = answer.headers.get("ETag", "")
        linked = answer.headers.get("X-Linked-ETag", tag).strip('"')
        self._named = linked if len(linked) == 64 and set(linked) <= set("0123456789abcdef") else None
        strong = tag if tag and not tag.startswith("W/") else None
        identity = self._sha256 or strong
        if identity:
            _note_of(self._to).write_text(json.dumps({"identity": identity}))
        else:
            _note_of(self._to).unlink(missing_ok=True)

    def _verify(self) -> None:
        expected = self._sha256 or self._named
        if expected is None:
            return
        found = checksum(_part_of(self._to))
        if found != expected:
            _part_of(self._to).unlink()
            _note_of(self._to).unlink(missing_ok=True)
            raise ModelError(
                f"{self._to.name} came damaged from {_host(self._url)}: its SHA-256 is {found}, not {expected}; "
                "it was removed: pull it again"
            )


def fetch_text(url: str, accept: str) -> str:
    """A page, which is small; blocks, and raises ModelError."""
    with _open(url, {"Accept": accept}) as answer:
        try:
            return answer.read(_LARGEST_PAGE).decode()
        except (OSError, HTTPException, UnicodeDecodeError) as error:
            raise ModelError(f"{url} cannot be read: {error}") from error


def _open(url: str, headers: dict[str, str]) -> HTTPResponse:
    try:
        answer: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_SECONDS)
    except HTTPError as error:
        if error.code == 416:
            return error  # type: ignore[return-value]  # it is the response as well
        with error:
            raise ModelError(f"{url}: {_refusal(error)}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ModelError(f"{_host(url)} cannot be reached: {getattr(error, 'reason', error)}") from error
    return answer


def _refusal(error: HTTPError) -> str:
    if error.code in (401, 403):
        return f"{error.code} {error.reason}: a gated model of Hugging Face is pulled as org/name, with HF_TOKEN set"
    return f"{error.code} {error.reason}"


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _after_slash(content_range: str) -> int | None:
    return _number(content_range.partition("/")[2])
