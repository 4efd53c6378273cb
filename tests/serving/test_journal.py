"""The journal of a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.serving.batches.journal import Journal, JournalError, JournalHeader, checksum

HEADER = JournalHeader(input="p.jsonl", checksum="abc", model="m")


def record(line: int) -> bytes:
    return json.dumps({"text": f"line {line} ü"}).encode()


def opened(folder: Path, header: JournalHeader = HEADER) -> Journal:
    journal = Journal(folder / "output.jsonl")
    try:
        journal.open(header)
    except BaseException:
        journal.close()
        raise
    return journal


@settings(max_examples=60)
@given(order=st.permutations(range(1, 12)), written=st.integers(0, 11), cut=st.floats(0, 1))
def test_killed_anywhere_each_line_is_written_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], written: int, cut: float
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = opened(folder)
    for line in order[:written]:
        journal.add(line, record(line), failed=False)
    journal.close()
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[: int(len(whole) * cut)])

    journal = opened(folder)
    asked_again = [line for line in order if line not in journal]
    for line in asked_again:
        journal.add(line, record(line), failed=False)
    journal.finish()

    assert (folder / "output.jsonl").read_bytes().splitlines() == [record(line) for line in sorted(order)]
    assert not journal.path.exists()
    assert cut < 1 or len(asked_again) == len(order) - written


def test_failures_are_counted_across_runs(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(1, record(1), failed=True)
    journal.close()
    journal = opened(tmp_path)
    assert (len(journal), journal.failed) == (1, 1)
    journal.close()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (JournalHeader(input="q.jsonl", checksum="abc", model="m"), "another input file"),
        (JournalHeader(input="p.jsonl", checksum="xyz", model="m"), "another content of the input file"),
        (JournalHeader(input="p.jsonl", checksum="abc", model="n"), "another model"),
    ],
)
def test_answers_of_something_else_are_not_mixed_in(tmp_path: Path, other: JournalHeader, what: str) -> None:
    opened(tmp_path).close()
    with pytest.raises(JournalError, match=what):
        opened(tmp_path, other)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "output.jsonl.journal").write_text("my diary\n")
    with pytest.raises(JournalError, match="not the journal"):
        opened(tmp_path)
    assert (tmp_path / "output.jsonl.journal").read_text() == "my diary\n"


def test_two_at_once_do_not_write_the_same_journal(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(JournalError, match="another batch is running"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot write to"):
        opened(tmp_path / "nowhere")


def test_blank_lines_are_no_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"text": "a"}\n\n  \n{"text": "b"}')
    assert checksum(file)[1] == 2


def test_failures_can_be_written_apart(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for line in (3, 1, 2):
        journal.add(line, record(line), failed=line == 2)
    journal.write(tmp_path / "good", failed=False)
    journal.write(tmp_path / "bad", failed=True)
    assert (tmp_path / "good").read_bytes().splitlines() == [record(1), record(3)]
    assert (tmp_path / "bad").read_bytes().splitlines() == [record(2)]
    assert journal.path.exists()
    journal.drop()
    assert not journal.path.exists()
