"""Our own OpenAPI document, held against the server that publishes it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import ModelType
from dynamo.runtime.inspection import objects
from support.toys import BOTH, Live, Scripted, embed_tokens, toy_card

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def naming_models(api: dict[str, Any]) -> dict[str, Any]:
    """The same document for this server: most requests name a model that it serves."""
    for name, schema in api["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": ["embed" if name == "EmbeddingRequest" else "toy"]}
    return api


async def test_the_server_does_what_its_document_says(
    live: Live, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process has the objects of all tests.
    monkeypatch.setattr(objects, "LONGEST_SECONDS", 0.1)
    await live.serve(Scripted().generate, toy_card(folder, "toy", BOTH, guided_decoding=True))
    await live.serve(embed_tokens, toy_card(folder, "embed", ModelType.Embedding), "toy.embed.generate")
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(naming_models(await live.get("/openapi.json"))))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", live.url, "--checks", CHECKS),
        *("--max-examples", "20", "--phases", "examples,coverage,fuzzing", "--mode", "positive", "--seed", "7"),
        *("--suppress-health-check", "all", "--generation-database", "none", "--no-color"),
        *("--exclude-path", "/fleet/events"),  # it never ends
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[-6000:]
