"""Two keys of one server: while one takes all it can get, the other loses nothing of what it stored, nor any answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.stack import Stack
from support.waiting import until

KEYS = '[hostile]\nkey = "hostile"\n[other]\nkey = "other"\n'
LIMITS = (
    "--stored-responses", "60", "--stored-files-mb", "4", "--http-arriving-bodies-mb", "8", "--http-body-limit-mb", "4",
)  # fmt: skip
MOCKER = ("-m", "dynamo.mocker", "--model-path", "tiny", "--max-num-seqs", "8", "--num-gpu-blocks-override")


class Key:
    def __init__(self, session: aiohttp.ClientSession, url: str, name: str) -> None:
        self.headers = {"Authorization": f"Bearer {name}"}
        self.session = session
        self.url = url

    async def post(self, path: str, **more: Any) -> tuple[int, bytes]:
        async with self.session.post(self.url + path, headers=self.headers, **more) as answer:
            return answer.status, await answer.read()

    async def made(self, path: str, **more: Any) -> Any:
        status, data = await self.post(path, **more)
        assert status == 200, data
        return json.loads(data)

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self.session.get(self.url + path, headers=self.headers) as answer:
            return answer.status, await answer.read()

    async def complete(self, prompt: str, tokens: int) -> str:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        return str((await self.made("/v1/completions", json=body))["choices"][0]["text"])

    async def upload(self, data: bytes) -> tuple[int, bytes]:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", data, filename="lines.jsonl")
        return await self.post("/v1/files", data=form)

    async def store(self) -> list[str]:
        """A response, a conversation, a file and a batch with its results; where they are."""
        response = await self.made("/v1/responses", json={"model": "tiny", "input": "mine", "max_output_tokens": 4})
        items = [{"type": "message", "role": "user", "content": "mine"}]
        conversation = await self.made("/v1/conversations", json={"items": items})
        body = {"model": "tiny", "prompt": "a line", "max_tokens": 3}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
        status, data = await self.upload(json.dumps(line).encode())
        assert status == 200, data
        asked = {"input_file_id": json.loads(data)["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = await self.made("/v1/batches", json=asked)

        async def completed() -> bool:
            batch.update(json.loads((await self.get(f"/v1/batches/{batch['id']}"))[1]))
            return bool(batch["status"] == "completed")

        await until(completed)
        return [
            f"/v1/responses/{response['id']}", f"/v1/conversations/{conversation['id']}/items",
            f"/v1/files/{asked['input_file_id']}/content", f"/v1/batches/{batch['id']}",
            f"/v1/files/{batch['output_file_id']}/content",
        ]  # fmt: skip


async def objects(hostile: Key) -> None:
    """More conversations than the server keeps, and responses."""
    for _ in range(70):
        items = [{"type": "message", "role": "user", "content": "x" * 2000}]
        await hostile.made("/v1/conversations", json={"items": items})
        await hostile.made("/v1/responses", json={"model": "tiny", "input": "x", "max_output_tokens": 1})


async def disk(hostile: Key) -> None:
    """Three times the space of its files."""
    for _ in range(12):
        status, data = await hostile.upload(b"x" * 1_000_000)
        assert status == 200, data


async def costly_bodies(hostile: Key) -> None:
    """Bodies with as many values as may be, which are refused for what they say."""
    body = {"model": "tiny", "prompt": "x", "metadata": {str(number): [number] * 10 for number in range(3_000)}}
    for _ in range(10):
        await hostile.post("/v1/completions", json=body)


async def cache(hostile: Key) -> None:
    """Prompts that fill the worker's cache several times."""
    for number in range(12):
        await hostile.complete(f"{number} " + "long words " * 300, 1)


@pytest.fixture
async def two(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Key, Key]]:
    (tmp_path / "keys").write_text(KEYS)
    async with Stack(tmp_path, {"DYN_TCP_RPC_HOST": "127.0.0.1"}) as stack, aiohttp.ClientSession() as session:
        worker = await stack.python(*MOCKER, str(getattr(request, "param", 64)))
        frontend = await stack.frontend("--api-keys-file", str(tmp_path / "keys"), *LIMITS)
        await worker.line(".generate as instance")
        await frontend.process.line("can be served")
        yield Key(session, frontend.url, "hostile"), Key(session, frontend.url, "other")


async def test_what_a_key_stored_and_is_answered_does_not_depend_on_another(two: tuple[Key, Key]) -> None:
    hostile, other = two
    expected = await other.complete("a question", 20)
    stored = await other.store()
    before = [await other.get(path) for path in stored]
    assert {status for status, _ in before} == {200}
    for attack in (objects, disk, costly_bodies, cache):
        await attack(hostile)
        assert [await other.get(path) for path in stored] == before, attack.__doc__
        assert await other.complete("a question", 20) == expected, attack.__doc__


@pytest.mark.parametrize("two", [4096], indirect=True)
async def test_a_key_is_answered_beside_floods_and_bodies_of_another(two: tuple[Key, Key]) -> None:
    hostile, other = two
    expected = await other.complete("a question", 20)
    release = asyncio.Event()

    async def unfinished() -> AsyncIterator[bytes]:
        yield b" " * 1_000_000
        await release.wait()

    async def keep_asking(number: int) -> None:
        while True:
            await hostile.complete(f"flood {number}", 2_000)

    flood = [asyncio.create_task(keep_asking(number)) for number in range(40)]
    bodies = [asyncio.create_task(hostile.post("/v1/completions", data=unfinished())) for _ in range(12)]
    try:
        for _ in range(3):
            assert await other.complete("a question", 20) == expected
        assert not any(task.done() for task in flood), [task.exception() for task in flood if task.done()]
    finally:
        release.set()
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, *bodies, return_exceptions=True)
