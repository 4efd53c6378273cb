"""`dynamo profile`: what it refuses."""

from __future__ import annotations

import pytest

from dynamo.lab.profile.command import main


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["localhost:1"], 1, "localhost:1"),
        (["localhost:1", "--max-tokens", "3"], 2, "--max-tokens must be at least 64"),
        (["localhost:1", "localhost:2"], 2, "localhost:1 is not a file: give one server, or files of recorded steps"),
        (["localhost:1", "--output", "/nowhere/p.npz"], 2, "/nowhere/p.npz"),
    ],
)
def test_what_cannot_be_measured_or_written_is_named(
    words: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
    assert named in capsys.readouterr().err
