from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dynamo.engines.echo import EchoFull
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import EngineOutput, Usage
from dynamo.protocols.errors import Disconnected, Unknown
from support.serving import Holding, serving

TOTAL = (
    'dynamo_frontend_requests_total{{endpoint="chat_completions",error_type="{}",model="{}",'
    'request_type="{}",status="{}"}}'
)


def at(name: str) -> str:
    return f'dynamo_frontend_{name}{{model="tiny"}}'


async def test_a_request_is_counted_with_its_tokens_and_times(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        answer = await (await stack.chat()).json()
        await (await stack.chat(stream=True, n=2)).read()
        metrics = await stack.metrics()
    prompt, generated = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
    assert metrics[TOTAL.format("", "tiny", "unary", "success")] == 1
    assert metrics[TOTAL.format("", "tiny", "stream", "success")] == 1
    assert metrics[at("requests_started_total")] == 2
    assert metrics[at("input_sequence_tokens_sum")] == 3 * prompt
    assert metrics[at("output_sequence_tokens_sum")] == 3 * generated
    assert metrics[at("output_tokens_total")] == 3 * generated
    assert metrics[at("time_to_first_token_seconds_count")] == 2
    # The echo does not know an end-of-turn token: each choice ends with the step that follows it.
    assert metrics[at("inter_token_latency_seconds_count")] == 3 * generated
    assert 0 < metrics[at("inter_token_latency_seconds_sum")] < metrics[at("request_duration_seconds_sum")] * 2
    assert metrics[at("request_duration_seconds_count")] == 2
    assert metrics[at("inflight_requests")] == metrics[at("queued_requests")] == 0
    assert metrics[at("model_context_length")] == 2048


async def test_a_running_request_shows_up_as_it_proceeds(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat(stream=True))
        held = await engine.requests.get()
        metrics = await stack.metrics()
        assert metrics[at("inflight_requests")] == metrics[at("queued_requests")] == 1
        assert metrics[at("time_to_first_token_seconds_count")] == 0
        for id in (100, 101, 102):
            held.sink.tokens([id])
        metrics = await stack.metrics()
        assert (metrics[at("inflight_requests")], metrics[at("queued_requests")]) == (1, 0)
        assert metrics[at("output_tokens_total")] == 3
        assert metrics[at("inter_token_latency_seconds_count")] == 2
        assert metrics[at("inter_token_latency_seconds_sum")] > 0
        held.sink.item(
            EngineOutput(
                finish_reason="stop",
                completion_usage=Usage(prompt_tokens=9, prompt_tokens_details={"cached_tokens": 4}),
            )
        )
        await (await asking).read()
        metrics = await stack.metrics()
        assert metrics[at("output_tokens_total")] == 3
        assert metrics[at("cached_tokens_sum")] == 4
        assert metrics[at("inflight_requests")] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_worker_that_takes_text_is_timed_by_its_chunks(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path, EchoFull(0.0)) as stack:
        await (await stack.chat(stream=stream)).read()
        metrics = await stack.metrics()
    assert metrics[TOTAL.format("", "tiny", "stream" if stream else "unary", "success")] == 1
    assert metrics[at("time_to_first_token_seconds_count")] == 1
    # One for each character after the first, and the chunk with the finish reason.
    assert metrics[at("inter_token_latency_seconds_count")] == len("hello world")


async def test_what_comes_after_a_stop_is_not_measured(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat(max_tokens=2))
        held = await engine.requests.get()
        for _ in range(5):
            held.sink.tokens([100])
        assert (await asking).status == 200
        metrics = await stack.metrics()
    assert metrics[at("output_tokens_total")] == 2
    # The third step is the one that ends it.
    assert metrics[at("inter_token_latency_seconds_count")] == 2


async def test_a_worker_that_takes_text_may_report_its_tokens(tmp_path: Path) -> None:
    engine = Holding()
    engine.model_input = ModelInput.Text
    chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat())
        held = await engine.requests.get()
        held.sink.item({**chunk, "usage": {"prompt_tokens": "many", "completion_tokens": None}})
        held.sink.item({**chunk, "usage": {"prompt_tokens": 5, "completion_tokens": 3}})
        held.sink.end()
        assert (await asking).status == 200
        metrics = await stack.metrics()
    assert metrics[at("input_sequence_tokens_sum")] == 5
    assert metrics[at("output_tokens_total")] == 3


async def test_images_and_recordings_are_counted_where_a_model_may_take_them(tmp_path: Path) -> None:
    engine = Holding()
    engine.model_input = ModelInput.Text
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    contents: list[object] = ["no media", [image, image, {"type": "text", "text": "what?"}, audio], [image]]
    async with serving(tmp_path, engine) as stack:
        for content in contents:
            asking = asyncio.create_task(stack.chat(messages=[{"role": "user", "content": content}]))
            (await engine.requests.get()).sink.end()
            await asking
        metrics = await stack.metrics()
    assert [metrics[at(f"images_per_request_{part}")] for part in ("count", "sum")] == [2, 3]
    assert [metrics[at(f"audio_per_request_{part}")] for part in ("count", "sum")] == [1, 1]


async def test_several_tokens_in_one_step_share_its_time(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat())
        held = await engine.requests.get()
        held.sink.tokens([100])
        held.sink.tokens([100, 101, 102, 103])
        held.sink.tokens([])
        held.sink.end()
        await asking
        assert (await stack.metrics())[at("inter_token_latency_seconds_count")] == 5


async def test_names_that_clients_make_up_share_one_label(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        for name in ("one", "two", 'three"} 1\n'):
            assert (await stack.chat(model=name)).status == 404
        assert (await stack.chat(messages="no list")).status == 400
        metrics = await stack.metrics()
    assert metrics[TOTAL.format("not_found", "unknown_model", "unary", "error")] == 3
    assert metrics[TOTAL.format("validation", "unknown_model", "unary", "error")] == 1
    assert not [name for name in metrics if '"one' in name or '"two' in name or "three" in name]


async def test_an_error_after_the_first_byte_is_an_event_and_counts_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat(stream=True, headers={"x-request-id": "find-me"}))
        held = await engine.requests.get()
        held.sink.tokens([100])
        answer = await asking
        held.sink.fail(Unknown("the engine\nbroke"))
        events = (await answer.text()).split("\n\n")
        metrics = await stack.metrics()
    assert answer.status == 200
    assert events[-3].startswith('data: {"error":{"message":"the engine\\nbroke (request id find-me)"')
    assert events[-2] == "data: [DONE]"
    assert metrics[TOTAL.format("internal", "tiny", "stream", "error")] == 1
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "the engine broke" in line
    assert "[find-me]" in line


async def test_a_client_that_leaves_cancels_its_request_and_is_counted(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        for stream in (True, False):
            asking = asyncio.create_task(stack.chat(stream=stream))
            held = await engine.requests.get()
            asking.cancel()
            await held.cancelled.wait()
        metrics = await stack.metrics()
    assert metrics["dynamo_frontend_disconnected_clients"] == 2
    for kind in ("stream", "unary"):
        assert metrics[TOTAL.format("cancelled", "tiny", kind, "error")] == 1
        label = f'{{endpoint="chat_completions",model="tiny",request_type="{kind}"}}'
        assert metrics[f"dynamo_frontend_model_cancellation_total{label}"] == 1


async def test_a_client_that_leaves_in_the_middle_of_a_stream_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat(stream=True))
        held = await engine.requests.get()
        held.sink.tokens([100])
        (await asking).close()
        while not held.cancelled.is_set():
            held.sink.tokens([100])
            await asyncio.sleep(0)
        metrics = await stack.metrics()
    assert metrics[TOTAL.format("cancelled", "tiny", "stream", "error")] == 1
    assert metrics["dynamo_frontend_disconnected_clients"] == 1
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_migrations_are_counted_by_whether_anything_was_generated(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, workers=3, card={"migration_limit": 3}) as stack:
        asking = asyncio.create_task(stack.chat())
        (await engine.requests.get()).sink.fail(Disconnected("gone"))
        second = await engine.requests.get()
        second.sink.tokens([100])
        second.sink.fail(Disconnected("gone"))
        (await engine.requests.get()).sink.end()
        assert (await asking).status == 200
        metrics = await stack.metrics()
    for kind in ("new_request", "ongoing_request"):
        assert metrics[f'dynamo_frontend_model_migration_total{{migration_type="{kind}",model="tiny"}}'] == 1


async def test_a_request_too_long_to_migrate_is_counted_as_such(tmp_path: Path) -> None:
    engine = Holding()
    exceeded = at("model_migration_max_seq_len_exceeded_total")
    async with serving(tmp_path, engine, workers=2, card={"migration_limit": 3}, migration_max_seq_len=5) as stack:
        asking = asyncio.create_task(stack.chat())
        (await engine.requests.get()).sink.fail(Disconnected("gone"))
        assert (await asking).status >= 500
        metrics = await stack.metrics()
    assert metrics[exceeded] == 1
    assert not [name for name in metrics if name.startswith("dynamo_frontend_model_migration_total")]


async def test_an_answer_that_breaks_after_its_last_token_is_a_success(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat(max_tokens=1))
        held = await engine.requests.get()
        held.sink.tokens([100])
        held.sink.fail(Disconnected("gone"))
        assert (await asking).status == 200
        metrics = await stack.metrics()
    assert metrics[TOTAL.format("", "tiny", "unary", "success")] == 1


async def test_the_prefix_of_all_names_can_be_chosen(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics_prefix="mine") as stack:
        await stack.chat()
        names = list(await stack.metrics())
    assert names
    others = (
        "dynamo_component_router_",
        "dynamo_component_kv_cache_",
        "dynamo_request_plane_",
        "dynamo_router_overhead_",
    )
    assert all(name.startswith(("mine_", *others)) for name in names)
