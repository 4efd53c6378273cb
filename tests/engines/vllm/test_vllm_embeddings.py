"""A vLLM that embeds, behind a frontend: the bundled model, converted by vLLM."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from openai import BadRequestError

from dynamo.model import bundled
from support.stack import Stack

MATRYOSHKA = '{"is_matryoshka": true}'
PATIENCE = 900.0
"""Only ends a test that hangs."""


async def test_a_pooling_model_is_served_as_embeddings(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"OMP_NUM_THREADS": "1"}) as stack:
        words = ("in=dyn://ns.backend.generate", "out=vllm", str(bundled()), "--model-name", "m")
        flags = ("--runner", "pooling", "--convert", "embed", "--max-model-len", "256", "--hf-overrides", MATRYOSHKA)
        worker = await stack.python("-m", "dynamo.cli.main", *words, "--", "--kv-cache-memory-bytes", "64M", *flags)
        async with asyncio.timeout(PATIENCE):
            while not any("serving dyn://" in line for line in worker.lines):
                assert worker.child.returncode is None, worker.output
                await asyncio.sleep(0.1)
        frontend = await stack.frontend()
        await frontend.until_models("m")
        made = await frontend.client.embeddings.create(model="m", input=["a cat", "a dog", "a cat"])
        first, second, third = [each.embedding for each in made.data]
        assert math.isclose(sum(number * number for number in first), 1.0, rel_tol=1e-3)
        assert first == third != second
        assert made.usage.prompt_tokens > 0
        short = await frontend.client.embeddings.create(model="m", input="a cat", dimensions=64)
        assert len(short.data[0].embedding) == 64
        whole = await frontend.client.embeddings.create(model="m", input="a cat", dimensions=len(first))
        assert whole.data[0].embedding == first
        with pytest.raises(BadRequestError, match="256"):
            await frontend.client.embeddings.create(model="m", input="cat " * 600)
        worker.child.terminate()
        assert await worker.ended() == 0
