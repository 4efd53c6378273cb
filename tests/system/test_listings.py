"""The engine listings that the guides show, as processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import models
from support.stack import Stack

LISTINGS = sorted((Path(__file__).parent / "listings").glob("*.py"))


@pytest.mark.parametrize("network", ["file", "etcd+tcp", "etcd+nats"])
async def test_the_guides_engines_serve_an_openai_client(network: str, stack: Stack, tmp_path: Path) -> None:
    folder = models.byte_level_model(tmp_path / "toy-model")
    workers = [await stack.python(str(listing), MODEL_PATH=str(folder)) for listing in LISTINGS]
    frontend = await stack.frontend()
    await frontend.until_models("toy-model")
    await frontend.until_instances(len(workers))
    for _ in range(2 * len(workers)):
        stream = await frontend.client.chat.completions.create(
            model="toy-model", messages=[{"role": "user", "content": "hello world"}], stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "user\nhello world"
    for worker in workers:
        await worker.line("generating")
