"""A worker dies in the middle of an answer and another one goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support import models
from support.stack import Stack

SLOW = ("--decode-speedup-ratio", "0.01")
"""Half a second for each token: whatever it has begun it does not finish before the test ends it."""
QUICK = ("--speedup-ratio", "100")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_stream_outlives_its_worker_byte_for_byte(stack: Stack, tmp_path: Path, end: signal.Signals) -> None:
    """Also where the worker was asked to go and its time to finish is up."""
    folder = models.byte_level_model(tmp_path / "toy-model")
    mocker = ["-m", "dynamo.mocker", "--model-path", str(folder), "--migration-limit", "3"]
    first = await stack.python(*mocker, *SLOW, DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT="0.1")
    frontend = await stack.frontend()
    await frontend.until_models("toy-model")
    stream = await frontend.client.chat.completions.create(
        model="toy-model",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = aiter(stream)
    said = [await anext(chunks) for _ in range(4)]
    await stack.python(*mocker, *QUICK)
    await frontend.until_instances(2)
    first.signal(end)
    said += [chunk async for chunk in chunks]
    usage = said[-1].usage
    assert usage
    assert usage.completion_tokens == 200
    moved = "".join(chunk.choices[0].delta.content or "" for chunk in said if chunk.choices)
    await frontend.process.line("moving it to another")
    whole = await frontend.client.chat.completions.create(
        model="toy-model", messages=[{"role": "user", "content": "hello"}], max_tokens=200
    )
    assert moved == whole.choices[0].message.content
    assert whole.usage
    assert usage.prompt_tokens == whole.usage.prompt_tokens


async def test_a_thinking_worker_that_dies_is_followed_by_one_that_goes_on_thinking(
    stack: Stack, tmp_path: Path
) -> None:
    folder = models.byte_level_model(tmp_path / "toy-model")
    thinking = '{"start_thinking_token_id": 30, "end_thinking_token_id": 32, "thinking_ratio": 0.5}'
    mocker = ["-m", "dynamo.mocker", "--model-path", str(folder), "--migration-limit", "3", "--reasoning", thinking]
    first = await stack.python(*mocker, *SLOW)
    frontend = await stack.frontend()
    await frontend.until_models("toy-model")
    stream = await frontend.client.completions.create(model="toy-model", prompt="hello", max_tokens=200, stream=True)
    chunks = aiter(stream)
    moved = "".join([(await anext(chunks)).choices[0].text for _ in range(4)])
    await stack.python(*mocker, *QUICK)
    await frontend.until_instances(2)
    first.signal(signal.SIGKILL)
    moved += "".join([chunk.choices[0].text async for chunk in chunks])
    await frontend.process.line("moving it to another")
    whole = await frontend.client.completions.create(model="toy-model", prompt="hello", max_tokens=200)
    assert moved == whole.choices[0].text
    assert moved.startswith("<")
