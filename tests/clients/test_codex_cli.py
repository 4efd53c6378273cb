"""Codex CLI with a provider in its config.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "codex"

CONFIG = """
model = "scripted"
model_provider = "dynamo"

[model_providers.dynamo]
name = "Dynamo"
base_url = "{url}/v1"
wire_api = "responses"
"""


@pytest.fixture
def codex(client: Installed, scripted: str, tmp_path: Path) -> Installed:
    folder = client.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CONFIG.format(url=scripted))
    return client


EXEC = ("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access")


def test_a_turn_is_answered_and_the_session_goes_on(codex: Installed) -> None:
    assert codex.run(*EXEC, "Hello there").strip() == "Hello there"
    assert codex.run(*EXEC, "resume", "--last", "Hello again").strip() == "Hello again"


def test_a_command_is_run_and_its_output_read(codex: Installed) -> None:
    said = codex.run(*EXEC, 'CALL exec_command {"cmd": "echo from-$((40+2))"}')
    assert said.startswith("The tool said:")
    assert "from-42" in said
