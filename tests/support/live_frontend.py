"""Fixtures of HTTP tests: one model folder, and a live frontend with a scripted worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.toys import Live, Scripted, toy_card, toy_folder

ANSWERS = {
    "WEATHER": '<tool_call>\n{"name": "weather", "arguments": {"city": "Lyon"}}\n</tool_call>',
    "TWO CALLS": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Lyon"}}</tool_call>'
        '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
    ),
    "sunny": "It is sunny.",
    "THINK": "<think>let me see</think>The answer.",
    "EMOJI": "🎉 Grüße, 你好!",
    "STOPS": "one two three four",
    "guided calls": '[{"name": "weather", "parameters": {"city": "Lyon"}}]',
    "guided call": '{"city": "Köln"}',
    "guided json": '{"city": "Lyon", "days": 2}',
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with Live() as frontend:
        yield frontend


@pytest.fixture
async def toy(live: Live, folder: Path) -> Scripted:
    """The model `org/toy`: parses hermes calls and thoughts, and can be guided."""
    engine = Scripted(ANSWERS)
    card = toy_card(folder, "org/toy", tool_call_parser="hermes", reasoning_parser="basic", guided_decoding=True)
    await live.serve(engine.generate, card)
    return engine
