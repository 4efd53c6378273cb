"""`python -m dynamo.epp` as a process: what it refuses, what it says, and that it ends."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import pytest

from support.running import run, running

EPP = [sys.executable, "-m", "dynamo.epp"]
SERVER = ("--server", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epp-mode", "standalone", *SERVER], "--epp-mode standalone needs --model-path"),
        (["--epp-mode", "standalone", "--model-path", "tiny"], "needs either --pool NAME or --server HOST:PORT"),
        (["--epp-mode", "standalone", "--model-path", "tiny", "--pool", "p", *SERVER], "needs either --pool NAME or"),
        ([*SERVER], "--server needs --epp-mode standalone"),
        (["--epp-mode", "standalone", "--server", "host", "--model-path", "tiny"], "--server must be HOST:PORT"),
        (["--tls-cert-path", "x"], "--tls-cert-path and --tls-key-path need each other"),
        (["--epp-mode", "fast"], "--epp-mode must be dynamo or standalone, not 'fast'"),
        (["--router-mode", "random"], "--router-mode must be kv"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = run(tmp_path, *words, program=EPP)
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epp-mode", "standalone", "--model-path", "/no/model", *SERVER], "no such model folder: /no/model"),
        (["--pool", "p"], "--pool p: Kubernetes cannot be reached"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, words: list[str], said: str) -> None:
    done = run(tmp_path, *words, "--epp-port", "0", program=EPP)
    assert done.returncode == 1
    assert [line for line in done.stderr.decode().splitlines() if line.startswith("error: ") and said in line]


def test_it_says_where_it_picks_shows_its_numbers_and_ends(tmp_path: Path) -> None:
    words = ["--epp-mode", "standalone", "--model-path", "tiny", *SERVER, "--epp-port", "0", "--epp-health-port", "0"]
    with running(tmp_path, *words, program=EPP, DYN_SYSTEM_PORT="0") as process:
        url = process.line_with("status at http").partition("status at ")[2].removesuffix("/health")
        assert "no TLS" in process.line_with("picking on 127.0.0.1:")
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert "dynamo_epp_endpoints 1.0" in answer.read().decode()
        assert process.end() == 0
