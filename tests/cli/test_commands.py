"""What all commands of `dynamo` share: one parser, one list, and an end without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynamo.cli.commands import COMMANDS, OTHER_NAMES, usage
from support.running import RUN, run
from support.waiting import PATIENCE

DYNAMO = [RUN[0], "-c", "import sys; sys.argv[0] = 'dynamo'; from dynamo.cli.main import dynamo; dynamo()"]
TRAFFIC = ("--request-count", "20", "--input-tokens", "64", "--output-tokens", "4")
WITH_PARSER = [command.name for command in COMMANDS if command.parser]


def test_the_help_lists_every_command_in_its_group() -> None:
    text = usage()
    for command in COMMANDS:
        assert f"  dynamo {command.name}" in text
        assert f"\n{command.group}\n" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_has_a_help(name: str, tmp_path: Path) -> None:
    for words in ((name, "--help"), ("help", name)):
        done = run(tmp_path, *words, program=DYNAMO)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"usage: dynamo")


@pytest.mark.parametrize("name", WITH_PARSER)
def test_a_misspelt_flag_of_any_command_names_the_nearest(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, name, "word", "--hepl", program=DYNAMO)
    expected = f"error: unknown flag '--hepl'; did you mean '--help'?; see dynamo {name} --help\n"
    assert (done.returncode, done.stderr.decode()) == (2, expected)


@pytest.mark.parametrize(("word", "meant"), [*OTHER_NAMES.items(), ("insepct", "inspect"), ("tpo", "top")])
def test_a_command_by_another_name_is_understood(
    word: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dynamo.cli.main import dynamo

    monkeypatch.setattr(sys, "argv", ["dynamo", word])
    with pytest.raises(SystemExit) as caught:
        dynamo()
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: unknown command 'dynamo {word}'; did you mean '{meant}'?\n"


@pytest.mark.parametrize(
    "words",
    [
        [*DYNAMO, "--help"],
        [*DYNAMO, "inspect"],
        [*DYNAMO, "list"],
        [*DYNAMO, "plan", *TRAFFIC, "--max-workers", "1"],
        [sys.executable, "-m", "dynamo.replay", *TRAFFIC],
    ],
    ids=lambda words: " ".join(words[2:4])[-20:],
)
def test_a_reader_that_leaves_ends_a_command_without_a_word(words: list[str], tmp_path: Path) -> None:
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE) == 141
    assert "error" not in said.lower()
    assert "Traceback" not in said
