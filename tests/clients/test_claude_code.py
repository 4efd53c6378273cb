"""Claude Code with ANTHROPIC_BASE_URL."""

from __future__ import annotations

import json

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "claude-code"


def claude(client: Installed, url: str, *words: str) -> str:
    return client.run(
        "claude",
        *words,
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_AUTH_TOKEN="k",
        ANTHROPIC_MODEL="scripted",
        ANTHROPIC_SMALL_FAST_MODEL="scripted",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def test_a_turn_is_answered_and_the_session_goes_on(client: Installed, scripted: str) -> None:
    first = json.loads(claude(client, scripted, "-p", "Hello there", "--output-format", "json"))
    assert (first["subtype"], first["is_error"]) == ("success", False)
    assert first["result"].endswith("Hello there")
    second = claude(client, scripted, "--resume", first["session_id"], "-p", "Hello again")
    assert second.strip().endswith("Hello again")


def test_a_command_is_run_and_its_output_read(client: Installed, scripted: str) -> None:
    said = claude(client, scripted, "-p", 'CALL Bash {"command": "echo from-$((40+2))"}', "--allowedTools", "Bash")
    assert said.strip() == "The tool said: from-42"
