"""Codex CLI with a provider in its config.toml."""

from __future__ import annotations

import json
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

CATALOG = {
    "slug": "scripted",
    "display_name": "Scripted",
    "supported_reasoning_levels": [],
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "base_instructions": "Be brief.",
    "supports_reasoning_summaries": False,
    "support_verbosity": False,
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "supports_parallel_tool_calls": False,
    "context_window": 272000,
    "experimental_supported_tools": [],
}
"""Codex offers custom tools only to models that its catalog says know them."""


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


def test_a_custom_tool_gets_its_text(codex: Installed, tmp_path: Path) -> None:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"models": [CATALOG]}))
    patch = '*** Begin Patch\n*** Add File: made.txt\n+It\'s "made" by é\n*** End Patch\n'
    call = f"CALL apply_patch {json.dumps({'input': patch})}"
    said = codex.run(*EXEC, "-c", f"model_catalog_json={json.dumps(str(catalog))}", call)
    assert "Success. Updated the following files:" in said
    assert (codex.home / "made.txt").read_text() == 'It\'s "made" by é\n'
