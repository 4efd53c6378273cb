"""Files and batches, by the official OpenAI client against a live server."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from dynamo.frontend.server import Server
from dynamo.llm import ModelType
from dynamo.router import RoutingConfig
from dynamo.serving.batches import batches
from dynamo.serving.batches import input_file as batch_file
from dynamo.serving.batches.input_file import bounded_lines
from support.limits import full_disk
from support.serving import Holding, serving
from support.toys import Live, Scripted, embed_tokens, metrics_once, toy_card
from support.waiting import until

MODEL = "org/toy"


class Clerk:
    """A client with a server."""

    def __init__(self, live: Live | Server, key: str = "k") -> None:
        self._live = live
        self.client = AsyncOpenAI(base_url=f"{live.url}/v1", api_key=key, max_retries=0)

    @property
    def live(self) -> Live:
        assert isinstance(self._live, Live)
        return self._live

    async def upload(self, *lines: Any, purpose: Any = "batch") -> str:
        content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        return (await self.client.files.create(file=("in.jsonl", content), purpose=purpose)).id

    async def begin(self, *lines: Any, endpoint: Any = "/v1/chat/completions") -> str:
        file = await self.upload(*lines)
        made = await self.client.batches.create(input_file_id=file, endpoint=endpoint, completion_window="24h")
        assert made.status == "validating"
        return made.id

    async def ended(self, id: str) -> Any:
        async def batch() -> Any:
            found = await self.client.batches.retrieve(id)
            return found if found.status in ("completed", "failed", "cancelled", "expired") else None

        return await until(batch)

    async def lines(self, file_id: str) -> list[Any]:
        content = await self.client.files.content(file_id)
        return [json.loads(line) for line in content.text.splitlines()]


def line(number: int, text: str = "hello", url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": asked}


@pytest.fixture(params=["memory", "sqlite"])
async def clerk(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> AsyncIterator[Clerk]:
    config = {"state_dir": str(tmp_path / "state")} if request.param == "sqlite" else {}
    async with Live(**config) as live:
        await live.serve(Scripted().generate, toy_card(folder, MODEL))
        await live.serve(embed_tokens, toy_card(folder, "embed", ModelType.Embedding), "toy.embed.generate")
        clerk = Clerk(live)
        async with clerk.client:
            yield clerk


async def test_a_file_is_uploaded_listed_shown_read_and_deleted(clerk: Clerk) -> None:
    files = clerk.client.files
    content = bytes(range(256)) * 1000
    made = await files.create(file=("data.bin", content), purpose="user_data")
    assert (made.bytes, made.filename, made.purpose) == (len(content), "data.bin", "user_data")
    other = await clerk.upload(b"x")
    assert (await files.content(made.id)).content == content
    assert await files.retrieve(made.id) == made
    assert [file.id async for file in files.list()] == [other, made.id]
    assert [file.id async for file in files.list(purpose="batch")] == [other]
    assert [file.id async for file in files.list(order="asc", limit=1)] == [made.id, other]
    assert (await files.delete(made.id)).deleted
    for call in (files.retrieve, files.delete, files.content):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {made.id}"):
            await call(made.id)


async def test_wrong_uploads_are_refused(clerk: Clerk) -> None:
    with pytest.raises(openai.BadRequestError, match="'nonsense' is not one of 'batch'"):
        await clerk.upload(b"x", purpose="nonsense")
    http = clerk.live.http
    async with http.post("/v1/files", json={}) as answer:
        assert answer.status == 415
    packed = {"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": "gzip"}
    async with http.post("/v1/files", data=b"rubbish", headers=packed) as answer:
        assert answer.status == 415
    async with http.post("/v1/files", data=b"rubbish", headers={"Content-Type": "multipart/form-data"}) as answer:
        assert answer.status == 400
    async with http.post(
        "/v1/files", data=b"rubbish", headers={"Content-Type": "multipart/form-data; boundary=x"}
    ) as answer:
        assert answer.status == 400
    assert [file async for file in clerk.client.files.list()] == []


async def test_a_batch_answers_each_line_and_keeps_failures_apart(clerk: Clerk) -> None:
    lines = [line(1, "one"), line(2, temperature=9), line(3, "three"), line(4, model="nothing")]
    batches.WAIT_FOR_MODEL, waited = 0.0, batches.WAIT_FOR_MODEL
    try:
        batch = await clerk.ended(await clerk.begin(*lines))
    finally:
        batches.WAIT_FOR_MODEL = waited
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 2, 2)
    good, bad = await clerk.lines(batch.output_file_id), await clerk.lines(batch.error_file_id)
    assert [one["custom_id"] for one in good] == ["r1", "r3"]
    assert "three" in good[1]["response"]["body"]["choices"][0]["message"]["content"]
    assert [(one["custom_id"], one["response"]["status_code"]) for one in bad] == [("r2", 400), ("r4", 404)]
    assert bad[0]["response"]["body"]["error"]["param"] == "temperature"
    assert (await clerk.client.files.retrieve(batch.output_file_id)).purpose == "batch_output"


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "hello"}, "text_completion"),
        ("/v1/embeddings", {"model": "embed", "input": "hello"}, "list"),
        ("/v1/responses", {"model": MODEL, "input": "hello"}, "response"),
    ],
)
async def test_a_batch_of_another_endpoint(clerk: Clerk, endpoint: str, body: dict[str, Any], kind: str) -> None:
    asked = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = await clerk.ended(await clerk.begin(asked, endpoint=endpoint))
    (answer,) = await clerk.lines(batch.output_file_id)
    assert answer["response"]["body"]["object"] == kind


async def test_a_file_with_wrong_lines_fails_with_their_numbers(clerk: Clerk) -> None:
    lines = [line(1), b"", b"{oops", line(1), line(2, url="/v1/embeddings"), {"custom_id": "x"}]
    batch = await clerk.ended(await clerk.begin(*lines))
    assert batch.status == "failed"
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (3, "invalid_json"),
        (4, "duplicate_custom_id"),
        (5, "mismatched_endpoint"),
        (6, "missing_required_parameter"),
    ]
    empty = await clerk.ended(await clerk.begin(b"\n"))
    assert empty.errors.data[0].code == "empty_file"


async def test_batches_are_listed_and_unknown_ones_refused(clerk: Clerk) -> None:
    client = clerk.client.batches
    made = [await clerk.begin(line(1)) for _ in range(3)]
    assert [batch.id async for batch in client.list(limit=2)] == made[::-1]
    for call in (client.retrieve, client.cancel):
        with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_x'"):
            await call("batch_x")
    with pytest.raises(openai.NotFoundError, match="No such File object: file-x"):
        await client.create(input_file_id="file-x", endpoint="/v1/completions", completion_window="24h")
    file = await clerk.upload(b"x", purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="upload it with purpose 'batch'"):
        await client.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        await client.create(input_file_id=file, endpoint="/v1/videos", completion_window="24h")
    await clerk.ended(made[0])
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'completed'"):
        await client.cancel(made[0])


class Gated(Scripted):
    """Answers `first` requests, then waits for the gate."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waits = asyncio.Event()
        self._first = first

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        if len(self.requests) >= self._first:
            self.waits.set()
            await self.gate.wait()
        async for step in super().generate(request, context):
            yield step


async def test_a_cancelled_batch_keeps_what_was_answered(folder: Path) -> None:
    engine = Gated(2)
    async with Live(http_batch_concurrency=1) as live:
        await live.serve(engine.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            id = await clerk.begin(*map(line, range(9)))
            await engine.waits.wait()
            assert (await clerk.client.batches.cancel(id)).status == "cancelling"
            engine.gate.set()
            batch = await clerk.ended(id)
            assert batch.status == "cancelled"
            assert [one["custom_id"] for one in await clerk.lines(batch.output_file_id)] == ["r0", "r1", "r2"]


async def test_an_expired_batch_keeps_what_was_answered_and_lists_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 1_000_000
    for module in (batches, batch_file):
        monkeypatch.setattr(module, "now", lambda: time)
    monkeypatch.setattr(batch_file, "elapsed", lambda: float(time))
    engine = Gated(2)
    async with Live(http_batch_concurrency=1) as live:
        await live.serve(engine.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            id = await clerk.begin(*map(line, range(5)))
            await engine.waits.wait()
            assert (await clerk.client.batches.retrieve(id)).expires_at == time + 24 * 60 * 60
            time += 24 * 60 * 60
            engine.gate.set()
            batch = await clerk.ended(id)
            answered, missed = await clerk.lines(batch.output_file_id), await clerk.lines(batch.error_file_id)
            with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'expired'"):
                await clerk.client.batches.cancel(id)
    assert (batch.status, batch.expired_at, batch.completed_at) == ("expired", time, None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (5, 3, 2)
    assert [one["custom_id"] for one in answered] == ["r0", "r1", "r2"]
    assert [(one["custom_id"], one["response"], one["error"]["code"]) for one in missed] == [
        ("r3", None, "batch_expired"),
        ("r4", None, "batch_expired"),
    ]


async def test_a_batch_whose_window_ended_while_no_server_ran_expires_at_the_next_start(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 1_000_000
    for module in (batches, batch_file):
        monkeypatch.setattr(module, "now", lambda: time)
    state = {"state_dir": str(tmp_path), "http_batch_concurrency": 1}
    engine = Gated(1)
    async with Live(**state) as live:
        await live.serve(engine.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            id = await clerk.begin(*map(line, range(3)))
            await engine.waits.wait()
    time += 48 * 60 * 60
    async with Live(**state) as live:
        clerk = Clerk(live)
        async with clerk.client:
            batch = await clerk.ended(id)
            assert batch.status == "expired"
            assert [one["custom_id"] for one in await clerk.lines(batch.output_file_id)] == ["r0"]
            assert [one["custom_id"] for one in await clerk.lines(batch.error_file_id)] == ["r1", "r2"]


async def test_a_batch_goes_on_after_a_restart_though_its_file_was_deleted(folder: Path, tmp_path: Path) -> None:
    state = {"state_dir": str(tmp_path), "http_batch_concurrency": 1}
    engine = Gated(2)
    async with Live(**state) as live:
        await live.serve(engine.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            id = await clerk.begin(*map(line, range(5)))
            await engine.waits.wait()
            (file,) = [file async for file in clerk.client.files.list()]
            await clerk.client.files.delete(file.id)
    second = Scripted()
    async with Live(**state) as live:
        await live.serve(second.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            batch = await clerk.ended(id)
            assert batch.status == "completed"
            answers = await clerk.lines(batch.output_file_id)
    assert [one["custom_id"] for one in answers] == [f"r{number}" for number in range(5)]
    assert len(second.requests) == 3
    assert list((tmp_path / "batches").iterdir()) == []


async def test_the_oldest_files_go_first_and_a_larger_one_is_refused(folder: Path) -> None:
    async with Live(stored_files_mb=1) as live:
        clerk = Clerk(live)
        async with clerk.client:
            first = await clerk.upload(bytes(600_000))
            second = await clerk.upload(bytes(600_000))
            assert [file.id async for file in clerk.client.files.list()] == [second]
            assert first != second
            with pytest.raises(openai.APIStatusError) as refused:
                await clerk.upload(bytes(2_000_000))
            assert refused.value.status_code == 413


async def test_what_a_killed_upload_left_is_deleted_after_a_day(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    old, new = tmp_path / "files" / "file-1.part", tmp_path / "files" / "file-2.part"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    async with Live(state_dir=str(tmp_path)):
        assert not old.exists()
        assert new.exists()


async def test_a_batch_whose_results_cannot_be_written_fails(folder: Path, tmp_path: Path) -> None:
    engine = Gated(1)
    async with Live(state_dir=str(tmp_path), http_batch_concurrency=1) as live:
        await live.serve(engine.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            id = await clerk.begin(line(1), line(2))
            await engine.waits.wait()
            (tmp_path / "files").rename(tmp_path / "gone")
            (tmp_path / "files").write_text("no folder")
            engine.gate.set()
            batch = await clerk.ended(id)
    assert batch.status == "failed"
    assert batch.errors.data[0].code == "server_error"


async def test_a_line_is_bounded_as_a_body_is(folder: Path) -> None:
    async with Live(body_limit_mb=1, body_items=1000) as live:
        await live.serve(Scripted().generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            lines = (line(1), line(2, "x" * (3 << 20)), line(3, user="x", stop=["y"] * 20_000), line(4))
            batch = await clerk.ended(await clerk.begin(*lines))
    assert batch.status == "failed"
    assert [error.line for error in batch.errors.data] == [2, 3]
    assert batch.errors.data[0].code == "line_too_long"


async def test_the_lines_of_a_batch_wait_for_the_limits_of_their_key(folder: Path) -> None:
    async with Live(api_keys=("sesame",), key_tokens_per_second=0.001) as live:
        live.http.headers["Authorization"] = "Bearer sesame"
        toy = Scripted()
        await live.serve(toy.generate, toy_card(folder, MODEL))
        clerk = Clerk(live, "sesame")
        async with clerk.client:
            id = await clerk.begin(line(1), line(2), line(3))
            await until(lambda: toy.requests)
            await clerk.client.batches.cancel(id)
            batch = await clerk.ended(id)
    assert (batch.status, len(toy.requests)) == ("cancelled", 1)


async def test_the_lines_of_a_batch_take_turns_with_those_of_another_key(tmp_path: Path) -> None:
    engine = Holding()
    router = RoutingConfig(mode="kv", use_kv_events=False, queue_threshold=0)
    keys = ("flood", "light")
    async with serving(tmp_path, engine, router=router, api_keys=keys, http_batch_concurrency=6) as stack:
        flood, light = (Clerk(stack.server, key) for key in keys)

        async def waiting(count: int) -> None:
            name = 'dynamo_frontend_router_queue_pending_requests{model="tiny"}'
            await metrics_once(stack.metrics, lambda seen: seen[name] == count)

        async with flood.client, light.client:
            long = await flood.begin(*(line(number, model="tiny", max_tokens=9) for number in range(6)))
            await waiting(5)
            short = await light.begin(line(1, model="tiny", max_tokens=7))
            await waiting(6)
            order = []
            for _ in range(7):
                held = await engine.requests.get()
                order.append(held.request.stop_conditions.max_tokens)
                held.sink.tokens([100])
                held.sink.end()
            assert order.index(7) <= 2, order
            assert [(await flood.ended(long)).status, (await light.ended(short)).status] == ["completed"] * 2


async def test_the_lines_of_a_batch_count_among_the_open_streams(tmp_path: Path) -> None:
    engine, name = Holding(), "dynamo_request_plane_inflight_requests"
    async with serving(tmp_path, engine, http_batch_concurrency=3) as stack:
        clerk = Clerk(stack.server)
        async with clerk.client:
            batch = await clerk.begin(*(line(number, model="tiny") for number in range(3)))
            held = [await engine.requests.get() for _ in range(3)]
            await metrics_once(stack.metrics, lambda seen: seen[name] == 3)
            for each in held:
                each.sink.tokens([100])
                each.sink.end()
            assert (await clerk.ended(batch)).status == "completed"
            await metrics_once(stack.metrics, lambda seen: seen[name] == 0)


@given(st.text("ab\n", max_size=60), st.integers(0, 20))
def test_of_long_lines_the_rest_is_skipped(text: str, longest: int) -> None:
    content = text.encode()
    assert list(bounded_lines(io.BytesIO(content), longest)) == [line[: longest + 1] for line in io.BytesIO(content)]
    assert list(bounded_lines(io.BytesIO(content), -1)) == list(io.BytesIO(content))


async def test_a_batch_waits_while_the_disk_is_full_and_asks_nothing_twice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batches, "UNWRITABLE_PAUSE", 0.01)
    engine = Gated(2)
    async with Live(state_dir=str(tmp_path), http_batch_concurrency=1) as live:
        await live.serve(engine.generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            id = await clerk.begin(*map(line, range(5)))
            await engine.waits.wait()
            with full_disk():
                engine.gate.set()
                await until(lambda: "waits until it can be written" in caplog.text)
            batch = await clerk.ended(id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 5)
            assert [one["custom_id"] for one in await clerk.lines(batch.output_file_id)] == [f"r{n}" for n in range(5)]
    assert caplog.text.count("waits until it can be written") == 1


def stored_names(state: Path) -> list[str]:
    return sorted(path.name for path in state.rglob("*") if path.name.startswith(("file-", "batch_")))


async def test_an_upload_and_a_batch_are_refused_when_the_disk_is_full_and_leave_nothing(
    folder: Path, tmp_path: Path
) -> None:
    async with Live(state_dir=str(tmp_path)) as live:
        await live.serve(Scripted().generate, toy_card(folder, MODEL))
        clerk = Clerk(live)
        async with clerk.client:
            file = await clerk.upload(line(0))
            kept = stored_names(tmp_path)
            with full_disk():
                for size in (1, 100_000):
                    with pytest.raises(openai.InternalServerError, match=r"507.*cannot write to its disk"):
                        await clerk.upload(b"x" * size)
                with pytest.raises(openai.InternalServerError, match=r"507.*cannot write to its disk"):
                    await clerk.client.batches.create(
                        input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"
                    )
            assert stored_names(tmp_path) == kept
            assert await clerk.upload(b"x")
