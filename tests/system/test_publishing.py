"""Mockers as processes: what they publish reaches others, and a router process sends prompts where they are cached."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from dynamo.runtime import DistributedRuntime
from support import models
from support.kv_reader import Reader, ask_snapshot, content
from support.mockers import answer
from support.stack import Stack
from support.toys import toy_folder
from support.waiting import until


async def count(client: Any, count: int) -> list[int]:
    await until(lambda: len(client.instance_ids()) >= count)
    return list(client.instance_ids())


async def test_a_subscriber_sees_what_every_mocker_caches(
    stack: Stack, tmp_path: Path, here: DistributedRuntime
) -> None:
    folder = str(models.byte_level_model(tmp_path / "toy"))
    shared = ["--endpoint", "ns.backend.generate", "--model-path", folder, "--block-size", "4", "--speedup-ratio", "9"]
    await stack.python("-m", "dynamo.mocker", *shared, "--data-parallel-size", "2")
    await stack.python(
        "-m", "dynamo.cli.main", "in=dyn://ns.backend.generate", "out=mocker", folder, "--kv-cache-block-size", "4"
    )
    client = await here.endpoint("ns.backend.generate").client()
    workers = await count(client, 2)
    reader = await Reader().listen(here)
    for worker in workers:
        for at in range(3):
            assert len(await answer(client, [at] * 30, 12, worker)) == 12
    for worker in workers:
        held = 0
        for rank in (0, 1):
            snapshot = await ask_snapshot(here, worker, rank)
            if snapshot.last_event_id is not None:
                assert await reader.until(worker, snapshot.last_event_id, rank) == content(snapshot)
                held += len(content(snapshot))
        assert held == 3 * 10


async def test_a_router_process_sends_a_prompt_where_it_is_cached(
    stack: Stack, tmp_path: Path, here: DistributedRuntime
) -> None:
    folder = str(models.byte_level_model(tmp_path / "toy"))
    router = await stack.python("-m", "dynamo.router", "--endpoint", "ns.backend.generate")
    await router.line("waiting for a worker")
    await stack.python(
        "-m", "dynamo.mocker", "--endpoint", "ns.backend.generate", "--model-path", folder, "--block-size", "4",
        "--speedup-ratio", "50", "--num-workers", "2", "--stagger-delay", "0.05",
    )  # fmt: skip
    await router.line("serves dyn://ns.router")
    workers = await here.endpoint("ns.backend.generate").client()
    await count(workers, 2)
    best, generate, scores = [
        await here.endpoint(f"ns.router.{name}").client()
        for name in ("best_worker_id", "generate", "get_overlap_scores")
    ]
    for client in (best, generate, scores):
        await client.wait_for_instances()
    prompt = list(range(100, 140))
    request = {"token_ids": prompt, "stop_conditions": {"max_tokens": 4}}
    said = [item async for item in await generate.random(request, annotated=False)]
    assert sum(len(item["token_ids"]) for item in said) == 4

    async def holders() -> list[int]:
        (answer,) = [item async for item in await scores.random(prompt, annotated=False)]
        homes = [row["worker_id"] for row in answer["workers"] if row["device_blocks"] == 10]
        return homes if len(answer["workers"]) == 2 else []

    (home,) = await until(holders)
    assert [item async for item in await best.random(prompt, annotated=False)] == [home]
    again = [item async for item in await generate.random(request, annotated=False)]
    assert again[-1]["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 36}


async def test_a_router_process_may_open_as_many_files_as_the_machine_allows(stack: Stack) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        router = await stack.python("-m", "dynamo.router", "--endpoint", "ns.backend.generate")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await router.line("waiting for a worker")
    assert resource.prlimit(router.child.pid, resource.RLIMIT_NOFILE)[0] in (hard, 65536)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("dynamo.router", "--endpoint", "backend"), "namespace.component.endpoint"),
        (("dynamo.router", "--endpoint", "a.b.c", "--router-block-size", "0"), "--router-block-size"),
        (("dynamo.router", "--endpoint", "a.b.c", "--router-mode", "random"), "--router-mode"),
        (("dynamo.router", "--endpoint", "a.b.c", "--kv-overlap-score-weight", "-1"), "--kv-overlap-score-weight"),
        (("dynamo.mocker", "--model-path", "x", "--stagger-delay", "-2"), "--stagger-delay"),
        (("dynamo.mocker", "--model-path", "x", "--migration-limit", "-5"), "--migration-limit"),
        (("dynamo.mocker", "--model-path", "x", "--data-parallel-size", "9999999"), "--data-parallel-size"),
        (("dynamo.mocker", "--model-path", "x", "--reasoning", "[1]"), "--reasoning"),
        (("dynamo.mocker", "--model-path", "x", "--engine-type", "tgi"), "--engine-type"),
        (("dynamo.mocker", "--model-path", "tiny", "--planner-profile-data", "/none.npz"), "profile /none.npz"),
    ],
)
async def test_wrong_flags_are_named_and_refused(stack: Stack, words: tuple[str, ...], named: str) -> None:
    process = await stack.python("-m", *words)
    assert await process.ended() == 2
    (said,) = process.lines[:-1]
    assert named in said


async def test_a_frontend_that_listens_sends_every_turn_where_the_last_one_was(stack: Stack, tmp_path: Path) -> None:
    folder = str(models.byte_level_model(tmp_path / "toy"))
    await stack.python(
        "-m",
        "dynamo.mocker",
        "--model-path",
        folder,
        "--block-size",
        "16",
        "--num-workers",
        "3",
        "--speedup-ratio",
        "50",
    )
    frontend = await stack.frontend("--router-mode", "kv")
    await frontend.until_models("toy")
    await frontend.until_instances(3)

    async def cached(text: str) -> tuple[int, int]:
        answer = await frontend.client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": text}], max_tokens=4
        )
        assert answer.usage
        details = answer.usage.prompt_tokens_details
        return (details and details.cached_tokens) or 0, answer.usage.prompt_tokens

    prompts = [f"conversation {at}: " + f"word{at} " * 60 for at in range(4)]
    for prompt in prompts:

        async def is_cached(prompt: str = prompt) -> bool:
            return (await cached(prompt))[0] > 0

        await until(is_cached)
    for prompt in prompts:
        hit, length = await cached(prompt)
        assert hit == (length - 1) // 16 * 16


async def test_a_prefill_mocker_is_no_worker_of_a_frontend(stack: Stack, tmp_path: Path) -> None:
    shared = ["-m", "dynamo.mocker", "--model-path", str(toy_folder(tmp_path / "toy")), "--speedup-ratio", "0"]
    prefill = await stack.python(*shared, "--disaggregation-mode", "prefill")
    await prefill.line("serves 'toy' at dyn://dynamo.prefill.generate")
    await stack.python(*shared)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    await frontend.until_instances(2)
    for _ in range(4):
        answer = await frontend.client.completions.create(model="toy", prompt="hello", max_tokens=5)
        assert answer.usage
        assert answer.usage.completion_tokens == 5


async def test_without_a_limit_an_answer_ends_by_itself(stack: Stack, tmp_path: Path) -> None:
    await stack.python("-m", "dynamo.mocker", "--model-path", str(toy_folder(tmp_path / "toy")), "--speedup-ratio", "0")
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    answer = await frontend.client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "hello"}])
    assert answer.choices[0].finish_reason == "stop"


async def test_choices_without_a_seed_differ(stack: Stack, tmp_path: Path) -> None:
    await stack.python("-m", "dynamo.mocker", "--model-path", str(toy_folder(tmp_path / "toy")), "--speedup-ratio", "0")
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    answer = await frontend.client.completions.create(model="toy", prompt="hello", max_tokens=20, n=3)
    assert len({choice.text for choice in answer.choices}) == 3
