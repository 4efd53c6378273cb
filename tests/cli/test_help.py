"""What dynamo-run tells about itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dynamo
from dynamo.cli.commands import COMMANDS
from dynamo.cli.run import flags
from dynamo.cli.run.completion import script
from dynamo.cli.run.help import help_text
from support.running import RUN, run

DOCS = Path(__file__).parents[2] / "docs"


def test_the_help_fits_one_screen_and_ends_in_examples() -> None:
    lines = help_text().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 110
    assert "dynamo-run in=" in lines[-1]


def test_the_help_names_every_flag_and_engine() -> None:
    text = help_text()
    for word in (*(option.name for option in flags.SHOWN), *flags.ENGINES, "pystr:", "pytok:", "dyn://", "batch:"):
        assert word in text


def test_the_guides_are_what_the_tables_make_them() -> None:
    done = subprocess.run([sys.executable, DOCS / "update.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), "run `make docs`"


def test_help_version_and_completion_go_to_stdout(tmp_path: Path) -> None:
    for words, expected in (
        (["--help"], help_text()),
        (["--version"], f"dynamo-run {dynamo.__version__}\n"),
        (["--completion", "fish"], script("fish")),
    ):
        done = run(tmp_path, *words)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode() == expected


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    done = run(tmp_path, "-X", "importtime", "-m", "dynamo.cli.main", "--help", program=RUN[:1])
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "dynamo.cli.run.help" in loaded
    assert loaded.isdisjoint({"asyncio", "aiohttp", "uvloop", "tokenizers", "rich", "prompt_toolkit", "dynamo.runtime"})


def test_no_command_loads_what_it_runs_with_to_show_its_help(tmp_path: Path) -> None:
    heavy = "aiohttp uvloop tokenizers jinja2 numpy zmq dynamo.runtime.client dynamo.model.card dynamo.engines.base"
    body = f"""
import os, sys
from dynamo.cli.commands import COMMANDS
for command in COMMANDS:
    try:
        command.run(["--help"], os.environ)
    except SystemExit as done:
        assert not done.code, command.name
    loaded = [name for name in {heavy.split()} if name in sys.modules]
    if loaded:
        sys.exit(f"dynamo {{command.name}} --help loads {{loaded}}")
"""
    done = run(tmp_path, "-c", body, program=RUN[:1])
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert done.stdout.count(b"usage: ") >= len(COMMANDS)


def test_the_other_command_is_dynamo(tmp_path: Path) -> None:
    program = [RUN[0], "-c", "from dynamo.cli.main import dynamo; dynamo()"]
    assert run(tmp_path, "--version", program=program).stdout.decode() == f"dynamo {dynamo.__version__}\n"
    assert run(tmp_path, "run", "--help", program=program).stdout.decode() == help_text()
    assert run(tmp_path, "run", "out=echo", program=program, input="hi").stdout == b"hi\n"
    wrong = run(tmp_path, "rnu", program=program)
    assert (wrong.returncode, wrong.stderr.decode()) == (
        2,
        "error: unknown command 'dynamo rnu'; did you mean 'run'?\n",
    )


def complete(line: str) -> list[str]:
    """What bash offers at the end of a line; like readline, `=` and `:` separate words."""
    words = [word for word in re.split(r"\s+|(=|:)", line) if word] + ([""] if line.endswith(" ") else [])
    quoted = " ".join(f"'{word}'" for word in words)
    body = f"""
    compopt() {{ :; }}
    PATH={Path(sys.executable).parent}:$PATH
    {script("bash")}
    COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
    {"_dynamo" if words[0] == "dynamo" else "_dynamo_run"}
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return subprocess.run(["bash", "-c", body], capture_output=True, text=True, check=True, cwd="/").stdout.split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("dynamo-run in=h", ["http"]),
        ("dynamo-run in=http out=echo", ["echo_core", "echo_full"]),
        ("dynamo-run --router-mode r", ["round-robin", "random"]),
        ("dynamo-run --http-p", ["--http-port"]),
        ("dynamo-run --tls-", ["--tls-cert-path", "--tls-key-path"]),
        ("dynamo-run in=batch:/et", ["/etc"]),
        ("dynamo-run --completion f", ["fish"]),
        ("dynamo in", ["inspect"]),
        ("dynamo inspect 7 --pro", ["--profile"]),
        ("dynamo inspect 7 li", ["links"]),
        ("dynamo plan --ttft", ["--ttft-ms"]),
        ("dynamo top --pre", ["--prefixes"]),
        ("dynamo serve --ch", ["--check"]),
        ("dynamo pull smo", ["smollm2"]),
    ],
)
def test_bash_completes(line: str, offers: list[str]) -> None:
    assert complete(line) == offers


@pytest.mark.parametrize("shell", flags.SHELLS)
def test_each_completion_knows_every_flag_and_parses(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for option in flags.OPTIONS:
        assert option.name.removeprefix("--") in text
    if shutil.which(shell):
        file = tmp_path / "completion"
        file.write_text(text)
        subprocess.run([shell, "-n", str(file)], check=True)
