"""The journal of a batch: what makes it resumable.

Answers arrive in any order and the process can be killed at any moment. So each answer is appended to the journal in
one write, with the number of its input line. When all have arrived they are written in input order to the output file,
and the journal is deleted. A run that finds a journal of the same input resumes it: it does not repeat the lines in it,
and ignores a last line that was cut short.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash
from msgspec import Struct

from dynamo.protocols.errors import StartError


class JournalError(StartError):
    """The journal cannot be used; the message is one line: what happened and what to do."""


class JournalBusy(JournalError):
    """Another process writes it."""


class JournalUnwritable(JournalError):
    """The disk is full, or cannot be written for another reason; what was written before is kept."""


class JournalHeader(Struct, frozen=True, kw_only=True):
    """The batch a journal belongs to: answers for another input or model are never mixed in."""

    input: str
    checksum: str
    model: str


class Entry(Struct, kw_only=True):
    line: int
    failed: bool
    record: msgspec.Raw


_header = msgspec.json.Decoder(JournalHeader)
_entry = msgspec.json.Decoder(Entry)


class Journal:
    """Open from `open` to `close` or `finish`; held by one process at a time."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = output.with_name(output.name + ".journal")
        self._fd = -1
        self._spans: dict[int, tuple[int, int]] = {}
        self._size = 0
        self.failed = 0

    def check_output(self) -> None:
        """Reject to replace the answers of another run; those of an interrupted one are still in its journal."""
        if self.output.exists() and not self.path.exists():
            raise JournalError(f"{self.output} exists: move it away, or name another file with --output")

    def open(self, header: JournalHeader) -> None:
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise JournalError(f"cannot write to {self.path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalBusy(f"another batch is running in {self.path.parent}") from None
        self._read(header)
        if not self._size:
            self._append(msgspec.json.encode(header) + b"\n")

    def _read(self, expected: JournalHeader) -> None:
        """Read the finished entries and cut off an unfinished one."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                try:
                    if number == 0:
                        self._check(_header.decode(line), expected)
                    else:
                        entry = _entry.decode(line)
                        self._spans[entry.line] = (self._size, len(line))
                        self.failed += entry.failed
                except msgspec.MsgspecError:
                    raise JournalError(
                        f"{self.path} is not the journal of a batch: move it away or delete it"
                    ) from None
                self._size += len(line)
        os.ftruncate(self._fd, self._size)

    def _check(self, found: JournalHeader, expected: JournalHeader) -> None:
        if found != expected:
            what = "input file" if found.input != expected.input else "model"
            if found.input == expected.input and found.checksum != expected.checksum:
                what = "content of the input file"
            raise JournalError(
                f"{self.path} is from an interrupted batch with another {what} "
                f"({found.input}, model {found.model}): finish that one, or delete the journal to drop it"
            )

    def __contains__(self, line: int) -> bool:
        return line in self._spans

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, line: int, record: bytes, *, failed: bool) -> None:
        assert line not in self._spans
        offset = self._size
        data = msgspec.json.encode(Entry(line=line, failed=failed, record=msgspec.Raw(record))) + b"\n"
        self._append(data)
        self._spans[line] = (offset, len(data))
        self.failed += failed

    def _append(self, data: bytes) -> None:
        try:
            written = os.pwrite(self._fd, data, self._size)
        except OSError as error:
            raise JournalUnwritable(f"cannot write to {self.path}: {error.strerror}") from error
        if written != len(data):
            raise JournalUnwritable(f"cannot write to {self.path}: the disk is full")
        self._size += written

    def finish(self) -> None:
        """Write the output in input order and drop the journal."""
        self.write(self.output)
        self.drop()

    def write(self, output: Path, *, failed: bool | None = None) -> None:
        """Write the records in input order, or only those that failed or did not; the file appears whole or not at all.

        The journal is kept: writing can be repeated.
        """
        whole = output.with_name(output.name + ".new")
        try:
            with whole.open("wb") as file:
                file.writelines(self._in_order(failed))
            whole.replace(output)
        except OSError as error:
            with contextlib.suppress(OSError):
                whole.unlink()
            raise JournalUnwritable(f"cannot write {output}: {error.strerror}; the journal is kept") from error

    def drop(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise JournalError(f"cannot delete {self.path}: {error.strerror}") from error
        self.close()

    def _in_order(self, failed: bool | None) -> Iterator[bytes]:
        for line in sorted(self._spans):
            place, length = self._spans[line]
            entry = _entry.decode(os.pread(self._fd, length, place))
            if failed is None or entry.failed == failed:
                yield bytes(entry.record) + b"\n"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def checksum(path: Path) -> tuple[str, int]:
    """The checksum of a batch's input, and how many prompts it has."""
    digest, prompts = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            digest.update(line)
            prompts += bool((line if number else line.removeprefix(codecs.BOM_UTF8)).strip())
    return digest.hexdigest(), prompts
