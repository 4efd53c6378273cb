"""A frontend is killed under its batch, and another one that shares its folder goes on with it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from support.models import byte_level_model
from support.stack import Stack
from support.waiting import until

LINES = 40
SLOW = ("--decode-speedup-ratio", "0.1")


async def test_a_batch_of_a_dead_frontend_is_ended_by_another(stack: Stack, tmp_path: Path) -> None:
    model = byte_level_model(tmp_path / "toy-model")
    await stack.python("-m", "dynamo.mocker", "--model-path", str(model), *SLOW)
    shared = ("--state-dir", str(tmp_path / "state"), "--http-batch-concurrency", "4")
    first, second = await stack.frontend(*shared), await stack.frontend(*shared)
    for frontend in (first, second):
        await frontend.until_models("toy-model")
    body = {"model": "toy-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(LINES)
    ]
    file = await first.client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
    batch = await first.client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    journal = tmp_path / "state" / "batches" / f"{batch.id}.journal"
    await until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 4)
    first.process.signal(signal.SIGKILL)
    await first.process.ended()
    answered = journal.read_bytes().splitlines()[1:]

    async def ended() -> bool:
        return (await second.client.batches.retrieve(batch.id)).status == "completed"

    await until(ended)
    done = await second.client.batches.retrieve(batch.id)
    assert done.request_counts
    assert (done.request_counts.completed, done.request_counts.failed) == (LINES, 0)
    assert done.output_file_id
    output = (await second.client.files.content(done.output_file_id)).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in output] == [line["custom_id"] for line in lines]
    kept = {json.loads(line)["record"]["id"] for line in answered}
    assert kept
    assert kept <= {json.loads(line)["id"] for line in output}, "what was answered is not asked again"
