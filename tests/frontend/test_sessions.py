"""A request is known as a turn of a session: by headers, by what it continues, or by how it begins."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from multidict import CIMultiDict

from dynamo.api.sessions import guessed_session, named_session
from dynamo.frontend.measure.session_turns import SessionTurns
from dynamo.protocols.chat import Message
from dynamo.protocols.engine import Session
from dynamo.router import RoutingConfig
from support.serving import MODEL, Served, serving


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"X-Dynamo-Session-ID": "s"}, Session("s", "me")),
        ({"X-Dynamo-Session-ID": "s", "X-Dynamo-Parent-Session-ID": "p", "X-Dynamo-Session-Final": "true"},
         Session("s", "me", "p", final=True)),
        ({"X-Claude-Code-Session-Id": "s"}, Session("s", "me")),
        ({"X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": "a"}, Session("a", "me", "s")),
        ({"X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"},
         Session("b", "me", "a")),
        ({"thread-id": "t", "x-codex-parent-thread-id": "p"}, Session("t", "me", "p")),
        ({"x-session-id": "o", "x-parent-session-id": "p"}, Session("o", "me", "p")),
        ({"x-session-affinity": "o"}, Session("o", "me")),
        ({"X-Dynamo-Session-ID": "ours", "x-session-id": "theirs"}, Session("ours", "me")),
        ({"X-Dynamo-Session-ID": "é" * 128}, Session("é" * 128, "me")),
    ],
)  # fmt: skip
def test_the_session_is_what_the_headers_say(headers: dict[str, str], session: Session) -> None:
    assert named_session(CIMultiDict(headers), "me") == (session, [])


@pytest.mark.parametrize("id", ["s" * 257, "é" * 129, "a\x01b", "a\nb"])
def test_what_is_no_id_is_named(id: str) -> None:
    assert named_session(CIMultiDict({"X-Dynamo-Session-ID": id}), "") == (None, ["x-dynamo-session-id"])
    session, wrong = named_session(CIMultiDict({"x-session-id": "s", "x-parent-session-id": id}), "")
    assert (session, wrong) == (Session("s"), ["the parent of the session"])


def test_later_prompts_of_a_conversation_begin_as_the_first_one() -> None:
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Again")]
    messages = [Message(role=role, content=text) for role, text in said]  # type: ignore[arg-type]
    first = guessed_session(messages[:2], "")
    assert guessed_session(messages, "") == first
    assert guessed_session([messages[0], messages[3]], "") != first
    assert not first.named


async def test_turns_are_counted_in_the_log_and_shown_on_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dynamo.frontend.measure.request_record")
    async with serving(tmp_path) as served:
        headers = {"X-Dynamo-Session-ID": "agent 7", "X-Dynamo-Parent-Session-ID": "agent 1"}
        for _ in range(3):
            (await served.chat(headers=headers)).raise_for_status()
        assert "session=agent 7 turn=3 " in caplog.text
        row = await shown(served)
        assert (row["id"], row["parent"], row["turns"], row["cached_percent"]) == ("agent 7", "agent 1", 3, [0, 0, 0])
        assert row["pause_s"] >= 0


async def test_an_id_that_is_too_long_is_ignored_with_a_warning(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        answer = await served.chat(headers={"X-Dynamo-Session-ID": "s" * 257})
        assert answer.headers["x-dynamo-warning"] == "ignored what is not the id of a session: x-dynamo-session-id"


async def test_keys_have_sessions_of_their_own(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("one", "two")) as served:
        for key in ("one", "two", "one"):
            answer = await served.chat(headers={"X-Dynamo-Session-ID": "s", "Authorization": f"Bearer {key}"})
            answer.raise_for_status()
        assert sorted(turns.turns for turns in sessions(served)) == [1, 2]


async def test_a_final_turn_ends_the_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for final in ("true", "false"):
            headers = {"X-Dynamo-Session-ID": "s", "X-Dynamo-Session-Final": final}
            (await served.chat(headers=headers)).raise_for_status()
        assert [turns.turns for turns in sessions(served)] == [1]


async def test_responses_that_continue_each_other_are_one_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first = await respond(served, input="Hi")
        second = await respond(served, input="And?", previous_response_id=first)
        await respond(served, input="So?", previous_response_id=second)
        assert [(turns.id, turns.turns) for turns in sessions(served)] == [(first, 3)]


async def test_a_conversation_is_a_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        made = await served.http.post(f"{served.url}/v1/conversations", json={})
        id = (await made.json())["id"]
        for text in ("Hi", "And?"):
            await respond(served, input=text, conversation=id)
        assert [(turns.id, turns.turns) for turns in sessions(served)] == [(id, 2)]


async def test_a_routing_decision_names_the_session_and_its_worker(tmp_path: Path) -> None:
    async with serving(tmp_path, workers=2, router=RoutingConfig(session_affinity_ttl_secs=60)) as served:
        reasons = []
        for _ in range(2):
            answer = await served.chat(headers={"x-session-id": "s"}, nvext={"extra_fields": ["routing"]})
            reasons.append((await answer.json())["nvext"]["routing"][0])
        assert reasons[0]["session"] == {"id": "s"}
        assert reasons[1]["session"] == {"id": "s", "worker_id": reasons[0]["worker_id"], "dp_rank": 0}
        assert reasons[1]["worker_id"] == reasons[0]["worker_id"]


async def respond(served: Served, **fields: Any) -> str:
    answer = await served.http.post(f"{served.url}/v1/responses", json={"model": MODEL, **fields})
    answer.raise_for_status()
    id: str = (await answer.json())["id"]
    return id


def sessions(served: Served) -> list[SessionTurns]:
    return list(served.server._frontend.requests.sessions.recent.values())


async def shown(served: Served) -> dict[str, Any]:
    """The only row of the fleet's table."""
    async with served.http.get(f"{served.url}/fleet/events", timeout=aiohttp.ClientTimeout(sock_read=30)) as events:
        async for line in events.content:
            if line.startswith(b"data: "):
                (row,) = msgspec.json.decode(line[6:])["sessions"].values()
                return dict(row)
    raise AssertionError("no document came")
