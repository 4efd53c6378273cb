"""The folder of model files that workers sent."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.model import FileError
from dynamo.model.file_cache import KEEP_SECONDS, FileCache
from dynamo.model.files import checksum
from dynamo.protocols.card import CardFile
from support.running import SOURCE

MIB = 1 << 20


def named(data: bytes, path: str = "/worker/tokenizer.json") -> CardFile:
    return CardFile(path=path, checksum=hashlib.sha256(data).hexdigest())


def test_a_file_is_known_by_its_sha256(tmp_path: Path) -> None:
    """A hash that is not cryptographic lets one worker put a file of its making in the place of another's."""
    (tmp_path / "file").write_bytes(b"abc")
    assert checksum(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 10 * MIB)


def last_used(path: Path, seconds_ago: float) -> None:
    at = time.time() - seconds_ago
    os.utime(path, (at, at))


def names(cache: FileCache) -> set[str]:
    return {entry.name for entry in cache.folder.iterdir()}


def test_a_file_is_found_by_its_checksum_whatever_its_path_was(cache: FileCache) -> None:
    assert cache.find(named(b"{}")) is None
    cache.put(named(b"{}"), b"{}")
    found = cache.find(named(b"{}", "/other/config.json"))
    assert found
    assert found.read_bytes() == b"{}"
    assert found.stat().st_mode & 0o077 == 0


def test_a_template_keeps_whether_it_is_json(cache: FileCache) -> None:
    assert cache.put(named(b"x", "/w/chat_template.json"), b"x").suffix == ".json"
    assert cache.put(named(b"x", "/w/chat_template.jinja"), b"x").suffix == ""


def test_other_bytes_than_the_card_names_are_not_stored(cache: FileCache) -> None:
    with pytest.raises(ValueError, match="checksum"):
        cache.put(named(b"right"), b"wrong")
    assert not cache.folder.exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"other content"])
def test_a_damaged_file_is_removed_and_can_be_stored_again(
    cache: FileCache, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = cache.put(named(b"{}"), b"{}")
    path.write_bytes(damage)
    assert cache.find(named(b"{}")) is None
    assert not path.exists()
    assert "damaged" in caplog.text
    assert cache.put(named(b"{}"), b"{}").read_bytes() == b"{}"


@given(st.one_of(st.text(), st.sampled_from(["../../etc/passwd", "/etc/passwd", "a" * 31, "A" * 32, "a" * 32 + "/x"])))
def test_a_checksum_that_is_none_never_becomes_a_path(text: str) -> None:
    cache = FileCache(Path("/nonexistent"), MIB)
    for use in (cache.find, lambda file: cache.put(file, b"")):
        with pytest.raises(FileError, match="malformed checksum"):
            use(CardFile(path="/w/config.json", checksum=text))


def test_the_longest_unused_files_go_when_the_limit_is_passed(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 3 * MIB)
    files = [bytes([n]) * MIB for n in range(4)]
    for n, data in enumerate(files[:3]):
        last_used(cache.put(named(data), data), KEEP_SECONDS + 100 - n)
    assert cache.find(named(files[0]))
    cache.put(named(files[3]), files[3])
    kept = [cache.find(named(data)) is not None for data in files]
    assert kept == [True, False, True, True]


def test_a_file_that_was_just_used_stays_beyond_the_limit(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 0)
    first, second = cache.put(named(b"1"), b"1"), cache.put(named(b"2"), b"2")
    assert first.exists()
    assert second.exists()


def test_what_a_killed_process_left_unfinished_is_removed(cache: FileCache) -> None:
    cache.put(named(b"1"), b"1")
    left, current = cache.folder / ".left", cache.folder / ".current"
    left.write_bytes(b"half")
    current.write_bytes(b"half")
    last_used(left, KEEP_SECONDS + 1)
    cache.put(named(b"2"), b"2")
    assert ".left" not in names(cache)
    assert ".current" in names(cache)


def test_a_folder_that_cannot_be_used_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = FileCache(tmp_path / "file" / "cache", MIB)
    assert cache.find(named(b"{}")) is None
    with pytest.raises(FileError, match=r"cannot store model files in .*/cache: Not a directory \(DYN_MODEL_CACHE"):
        cache.put(named(b"{}"), b"{}")


STORE = """
import sys
from pathlib import Path
import hashlib
from dynamo.model.file_cache import FileCache
from dynamo.protocols.card import CardFile
cache = FileCache(Path(sys.argv[1]), 0)
for n in range(200):
    data = bytes([n % 8]) * 100_000
    file = CardFile(path="/w/f", checksum=hashlib.sha256(data).hexdigest())
    assert cache.put(file, data).read_bytes() == data
    assert cache.find(file)
"""


def test_processes_that_store_the_same_files_at_once_never_see_half_of_one(cache: FileCache) -> None:
    command = [sys.executable, "-c", STORE, str(cache.folder)]
    writers = [subprocess.Popen(command, env={"PYTHONPATH": str(SOURCE)}) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(names(cache)) == 8
