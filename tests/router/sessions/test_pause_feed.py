"""From an HTTP request with the id of a session to what its worker is told when the turn has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.kv.pauses import AGES, SESSION_PAUSES, SessionPause
from dynamo.router import RoutingConfig
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.worker.serve import follow_pauses
from support.toys import Live, Scripted, toy_card, toy_folder

CHAT = "/v1/chat/completions"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ANSWERS = {"WEATHER": '<tool_call>{"name": "weather", "arguments": {"city": "Lyon"}}</tool_call>', "HI": "hello"}


class Told:
    """A worker's engine that notes what it is told."""

    def __init__(self) -> None:
        self.pauses: asyncio.Queue[SessionPause] = asyncio.Queue()

    def session_paused(self, pause: SessionPause) -> None:
        self.pauses.put_nowait(pause)


class Stage:
    def __init__(self, live: Live, told: Told, requests: list[Any]) -> None:
        self.live = live
        self.told = told
        self.requests = requests

    async def chat(self, text: str, **headers: str) -> None:
        body = {"model": "org/toy", "messages": [{"role": "user", "content": text}], "tools": [WEATHER]}
        status, answer = await self.live.post(
            CHAT, body, **{name.replace("_", "-"): it for name, it in headers.items()}
        )
        assert status == 200, answer

    @property
    def router(self) -> KvAwareRouter:
        (model,) = self.live.server._frontend.models.served()
        assert isinstance(model.router, KvAwareRouter)
        return model.router


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    told, toy = Told(), Scripted(ANSWERS)
    card = toy_card(toy_folder(tmp_path / "toy"), "org/toy", tool_call_parser="hermes")
    async with Live(router=RoutingConfig(mode="kv", keep_paused=True)) as live:
        runtime = await live.serve(toy.generate, card)
        await follow_pauses(runtime.endpoint("toy.backend.generate"), told)
        yield Stage(live, told, toy.requests)


async def test_a_worker_is_told_when_a_turn_has_ended(stage: Stage) -> None:
    await stage.chat("HI", x_session_id="s")
    pause = await stage.told.pauses.get()
    assert pause.session == stage.requests[0]["routing"]["session"][0]
    assert len(pause.rates) == len(AGES) + 1
    assert not pause.final


async def test_pauses_are_learned_by_the_tool_that_was_called(stage: Stage) -> None:
    for text in ("WEATHER", "HI", "WEATHER"):
        await stage.chat(text, x_session_id="s")
        await stage.told.pauses.get()
    assert stage.router.pauses
    assert sorted(stage.router.pauses.book._kinds) == ["end_turn", "weather"]


async def test_the_last_turn_says_so(stage: Stage) -> None:
    await stage.chat("HI", X_Dynamo_Session_ID="s", X_Dynamo_Session_Final="true")
    assert (await stage.told.pauses.get()).final


async def test_requests_without_a_named_session_say_nothing(stage: Stage) -> None:
    await stage.chat("HI")
    await stage.chat("HI", x_session_id="s")
    assert stage.requests[0].get("routing") is None
    assert (await stage.told.pauses.get()).session == stage.requests[1]["routing"]["session"][0]
    assert stage.told.pauses.empty()


async def test_what_is_no_pause_is_ignored(stage: Stage) -> None:
    assert stage.router.pauses
    subject = f"namespace.toy.component.backend.{SESSION_PAUSES}"
    stage.router._runtime.events.publish(subject, b"\xc1 no msgpack")
    stage.router._runtime.events.publish(subject, msgspec.msgpack.encode(SessionPause(worker_id=1, session="other")))
    await stage.chat("HI", x_session_id="s")
    assert (await stage.told.pauses.get()).rates
    assert stage.told.pauses.empty()


def test_an_engine_ignores_a_rank_that_it_does_not_have() -> None:
    MockerEngine(MockerArgs(num_gpu_blocks=8)).session_paused(SessionPause(worker_id=1, session="s", dp_rank=9))
