"""What `dynamo-run in=http` and `make run` say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dynamo.cli.run.http import greeting
from dynamo.frontend.config import FrontendConfig


@pytest.mark.parametrize("ui", [True, False])
def test_the_greeting_names_the_page_if_there_is_one(ui: bool) -> None:
    lines = greeting("http://127.0.0.1:8080", FrontendConfig(ui=ui), "tiny").splitlines()
    assert ("to chat, open http://127.0.0.1:8080/ in a browser" in lines) == ui
    assert ("to watch the workers, open http://127.0.0.1:8080/fleet" in lines) == ui


def test_make_run_says_what_it_does_before_it_does_it() -> None:
    root = Path(__file__).parents[2]
    # Prints what it would run, as if the virtual environment were out of date.
    command = ["make", "--dry-run", "--what-if", "pyproject.toml", "run"]
    planned = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    steps = ["Installing Dynamo", "pip install", "Starting dynamo-run", "bin/dynamo-run in=http"]
    places = [planned.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
