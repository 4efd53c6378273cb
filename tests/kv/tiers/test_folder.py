from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.messages import KvChange, Removed, Stored
from dynamo.kv.tiers import DamagedSegment, FolderTier, KvSegment, TierFolderError
from dynamo.kv.tiers.segment import from_bytes

FIRST = KvSegment((1, 2), None, b"first" * 100)
SECOND = KvSegment((3, 4), 2, b"second" * 100)
LIMIT = 1 << 20


def opened(folder: Path, limit: int = LIMIT, heard: list[KvChange] | None = None) -> FolderTier:
    return FolderTier(folder, limit, 2, (lambda change: None) if heard is None else heard.append)


def test_segments_survive_a_restart_in_their_order_of_use(tmp_path: Path) -> None:
    before = opened(tmp_path)
    before.put(FIRST)
    before.put(SECOND)
    for at, segment in enumerate((SECOND, FIRST)):  # FIRST was used last
        os.utime(before._path(segment.key), (at, at))
    before.close()
    heard: list[KvChange] = []
    after = opened(tmp_path, FIRST.size + 10, heard)
    assert heard == [Stored([3, 4], 2), Stored([1, 2], None), Removed([3, 4])]
    assert after.read(FIRST.key) == FIRST
    assert after.read(SECOND.key) is None
    after.close()


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "empty", "gone"])
def test_a_damaged_file_is_a_miss_and_is_removed(tmp_path: Path, damage: str) -> None:
    heard: list[KvChange] = []
    tier = opened(tmp_path, heard=heard)
    tier.put(FIRST)
    path = tier._path(FIRST.key)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({
            "cut": whole[:-1],
            "changed": whole[:-1] + bytes([whole[-1] ^ 1]),
            "other": b"".join(SECOND.to_bytes()),
            "empty": b"",
        }[damage])  # fmt: skip
    assert tier.read(FIRST.key) is None
    assert not path.exists()
    assert FIRST.key not in tier
    assert tier.used == 0
    assert heard[-1] == Removed([1, 2])
    assert tier.put(FIRST)
    tier.close()


def test_a_restart_removes_what_is_not_whole(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(FIRST)
    tier.put(SECOND)
    first, second = tier._path(FIRST.key), tier._path(SECOND.key)
    tier.close()
    first.write_bytes(first.read_bytes()[:-5])
    first.with_suffix(".part").write_bytes(b"begun")
    (tmp_path / "notes.txt").write_text("the user's own")
    again = opened(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["lock", "notes.txt", "secret", second.name])
    assert SECOND.key in again
    again.close()


def test_two_workers_do_not_share_a_folder(tmp_path: Path) -> None:
    one = opened(tmp_path)
    with pytest.raises(TierFolderError, match="is in use by another worker: give each worker a folder of its own"):
        opened(tmp_path)
    one.close()
    opened(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TierFolderError, match="Not a directory"):
        opened(tmp_path / "file" / "kv")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(TierFolderError, match="belongs to another user"):
        opened(tmp_path)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier._path(FIRST.key).with_suffix(".part").mkdir()  # so that writing fails
    with pytest.raises(OSError, match="directory"):
        tier.put(FIRST)
    assert FIRST.key not in tier
    assert tier.used == 0
    tier.close()


@given(
    st.binary(max_size=120) | st.binary(max_size=8).map(lambda cut: b"".join(FIRST.to_bytes())[: -len(cut) - 1] + cut)
)
def test_any_other_bytes_are_no_segment(data: bytes) -> None:
    if data != b"".join(FIRST.to_bytes()):
        with pytest.raises(DamagedSegment):
            from_bytes(data)


def test_a_restart_keeps_the_secret_which_only_its_user_reads(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(FIRST)
    tier.close()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    again = opened(tmp_path)
    assert again.secret == tier.secret
    assert FIRST.key in again
    again.close()


@pytest.mark.parametrize("harm", ["gone", "cut", "readable"])
def test_a_folder_whose_secret_cannot_be_trusted_starts_empty(tmp_path: Path, harm: str) -> None:
    tier = opened(tmp_path)
    tier.put(FIRST)
    tier.close()
    secret = tmp_path / "secret"
    if harm == "gone":
        secret.unlink()
    elif harm == "cut":
        secret.write_bytes(b"short")
    else:
        secret.chmod(0o644)
    again = opened(tmp_path)
    assert again.secret != tier.secret
    assert len(again) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "secret"]
    assert secret.stat().st_mode & 0o777 == 0o600
    again.close()


def test_segments_of_an_earlier_format_are_removed(tmp_path: Path) -> None:
    (tmp_path / f"{2:016x}.kv").write_bytes(b"DYNKV\0\0\1" + bytes(200))
    tier = opened(tmp_path)
    assert len(tier) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "secret"]
    tier.close()


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(TierFolderError, match="can be written by other users"):
        opened(tmp_path)
