from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from dynamo.api.headers import context_id, metadata, request_id, traceparent
from dynamo.frontend.admission.keys import ApiKeys, Unauthorized
from dynamo.protocols.errors import HttpError
from dynamo.protocols.worker_name import worker_name
from support.serving import CHAT, MODEL, Holding, Served, serving

MB = 1 << 20


def client(stack: Served, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0)


async def test_without_keys_everybody_may_ask(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        assert (await stack.chat()).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic first"},
        {"Authorization": "first"},
        {"x-api-key": "firs"},
        {"x-api-key": "first,second"},
    ],
)
async def test_who_has_no_key_is_refused(tmp_path: Path, sent: dict[str, str]) -> None:
    async with serving(tmp_path, api_keys=("first", "second")) as stack:
        answer = await stack.chat(headers=sent)
        error = (await answer.json())["error"]
        assert (answer.status, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert (await stack.http.get(f"{stack.url}/v1/models", headers=sent)).status == 401
        assert (await stack.http.get(f"{stack.url}/nowhere", headers=sent)).status == 401


async def test_each_key_opens_in_both_headers(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("first", "second")) as stack:
        for sent in (
            {"Authorization": "Bearer first"},
            {"authorization": "bearer second"},
            {"x-api-key": "second"},
        ):
            assert (await stack.chat(headers=sent)).status == 200


async def test_probes_need_no_key_and_metrics_by_choice(tmp_path: Path) -> None:
    for protect, status in ((False, 200), (True, 401)):
        async with serving(tmp_path / str(protect), api_keys=("k",), protect_metrics=protect) as stack:
            for path in ("/health", "/live"):
                assert (await stack.http.get(stack.url + path)).status == 200
            assert (await stack.http.get(f"{stack.url}/metrics")).status == status
            assert (await stack.http.get(f"{stack.url}/metrics", headers={"x-api-key": "k"})).status == 200


async def test_the_openai_client_raises_its_own_exceptions(tmp_path: Path) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": CHAT["messages"]}
    async with serving(tmp_path, api_keys=("right",), body_limit_mb=1) as stack:
        async with client(stack, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError, match="not one of this server's"):
                await stranger.chat.completions.create(**ask)
        async with client(stack, "right") as friend:
            answer = await friend.chat.completions.create(**ask)
            assert answer._request_id
            with pytest.raises(openai.NotFoundError) as missing:
                await friend.chat.completions.create(**{**ask, "model": "nope"})
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError):
                await friend.chat.completions.create(**ask, temperature=9)
            with pytest.raises(openai.APIStatusError) as large:
                await friend.chat.completions.create(**ask, user="u" * 2 * MB)
            assert large.value.status_code == 413


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4), st.text("abc", max_size=3))
def test_exactly_the_given_keys_open(keys: list[str], sent: str) -> None:
    checked = ApiKeys(keys)
    headers = CIMultiDict({"Authorization": f"Bearer {sent}"})
    if sent in keys:
        checked.check(headers)
    else:
        with pytest.raises(Unauthorized):
            checked.check(headers)


async def test_every_answer_carries_the_clients_request_id(tmp_path: Path) -> None:
    sent = {"x-request-id": "My own id-1"}
    async with serving(tmp_path, body_limit_mb=1) as stack:
        answers = [
            await stack.chat(headers=sent),
            await stack.chat(headers=sent, stream=True),
            await stack.chat(headers=sent, model="nope"),
            await stack.chat(headers=sent, user="u" * 2 * MB),
            await stack.http.get(f"{stack.url}/v1/chat/completions", headers=sent),
            await stack.http.get(f"{stack.url}/nowhere", headers=sent),
            await stack.http.get(f"{stack.url}/health", headers=sent),
            await stack.http.get(f"{stack.url}/metrics", headers=sent),
            await stack.http.post(f"{stack.url}/v1/completions", data=b"x", headers=sent),
            await stack.http.post(f"{stack.url}/live", headers={**sent, "Expect": "miracles"}),
        ]
    assert [answer.status for answer in answers] == [200, 200, 404, 413, 405, 404, 200, 200, 415, 417]
    assert {answer.headers["x-request-id"] for answer in answers} == {"My own id-1"}
    assert answers[4].headers["Allow"] == "POST"
    assert {answer.headers["Server"] for answer in answers} == {"dynamo"}


@given(st.text(max_size=140))
def test_only_an_id_that_can_stand_in_a_log_is_taken_over(text: str) -> None:
    taken = request_id(CIMultiDict({"x-request-id": text}))
    assert 0 < len(taken) <= 128
    assert taken.isascii()
    assert taken.isprintable()
    if taken != text:
        uuid.UUID(taken)


def test_workers_know_a_request_by_a_uuid() -> None:
    chosen = str(uuid.uuid4())
    assert context_id(CIMultiDict({"request-id": chosen}), "ours") == chosen
    assert context_id(CIMultiDict({"x-dynamo-request-id": chosen, "request-id": "no uuid"}), "ours") == chosen
    assert context_id(CIMultiDict({"request-id": "no uuid"}), "ours") == "ours"
    assert context_id(CIMultiDict({"x-request-id": "the client's"}), "the client's") != "the client's"


def test_metadata_leaves_credentials_out_and_has_a_limit() -> None:
    told = CIMultiDict(
        [
            ("X-Dynamo-Meta-Team", "a"),
            ("x-dynamo-meta-team", "b"),
            ("x-dynamo-meta-authorization", "s"),
            ("x-dynamo-meta-token", "Bearer s"),
            ("x-other", "c"),
        ]
    )
    assert metadata(told) == {"team": "a"}
    with pytest.raises(HttpError, match="431"):
        metadata(CIMultiDict({f"x-dynamo-meta-{index}": "v" for index in range(65)}))


def test_only_a_valid_trace_is_continued() -> None:
    valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert traceparent(CIMultiDict({"traceparent": valid})) == valid
    for wrong in ("", "x", valid.upper(), valid + "\n", "ff" + valid[2:], f"00-{'0' * 32}-00f067aa0ba902b7-01"):
        assert traceparent(CIMultiDict({"traceparent": wrong})) is None


async def test_each_request_has_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path) as stack:
        await (await stack.chat(stream=True, headers={"x-request-id": "one"})).read()
        await stack.chat(model="no\nsuch", headers={"x-request-id": "two"})
        await stack.http.get(f"{stack.url}/a%0Ab", headers={"x-request-id": "three"})
        await stack.http.get(f"{stack.url}/health")
        worker = stack.server.models.instances()[0].instance_id
    name = "dynamo.frontend.measure.request_record"
    lines = [record.getMessage() for record in caplog.records if record.name == name]
    assert len(lines) == 3
    assert lines[0].startswith(
        f"POST /v1/chat/completions 200 model=tiny worker={worker_name(worker)} in=13 out=7 ttft="
    )
    assert lines[0].endswith("ms [one]")
    assert "404" in lines[1]
    assert "no such" in lines[1]
    assert "GET /a%0Ab 404" in lines[2]
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_however_it_is_sent(tmp_path: Path, chunked: bool) -> None:
    async with serving(tmp_path, body_limit_mb=1) as stack:
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {4 * MB}"
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
        )
        async with stack.raw() as (reader, writer):
            writer.write(head.encode())
            if chunked:
                writer.write(b"%x\r\n%b\r\n" % (2 * MB, b" " * 2 * MB))
            assert b"413" in await reader.readline()
        assert (await stack.chat()).status == 200


async def test_a_body_that_is_a_bomb_is_measured_unpacked(tmp_path: Path) -> None:
    import zlib

    bomb = zlib.compress(b" " * 8 * MB)
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    async with serving(tmp_path, body_limit_mb=1) as stack:
        answer = await stack.http.post(f"{stack.url}/v1/chat/completions", data=bomb, headers=headers)
        assert answer.status == 413


@pytest.mark.parametrize(
    ("status", "kind"), [(503, "service_unavailable_error"), (529, "overloaded_error"), (429, "rate_limit_error")]
)
async def test_more_requests_than_the_limit_are_told_to_retry(tmp_path: Path, status: int, kind: str) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, max_concurrent_requests=1, overload_status_code=status) as stack:
        first = asyncio.create_task(stack.chat())
        held = await engine.requests.get()
        refused = await stack.chat()
        assert refused.status == status
        assert (await refused.json())["error"]["type"] == kind
        assert refused.headers["Retry-After"] == "1"
        assert (await stack.http.get(f"{stack.url}/v1/models")).status == 200
        metrics = await stack.metrics()
        rejected = 'dynamo_frontend_model_rejection_total{endpoint="chat_completions",model="unknown_model"}'
        assert metrics[rejected] == 1
        held.sink.end()
        assert (await first).status == 200
        again = asyncio.create_task(stack.chat())
        (await engine.requests.get()).sink.end()
        assert (await again).status == 200


async def test_requests_whose_body_has_not_arrived_do_not_use_up_the_limit(tmp_path: Path) -> None:
    engine = Holding()
    body = msgspec.json.encode(CHAT)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    async with serving(tmp_path, engine, max_concurrent_requests=1) as stack, stack.raw() as (reader, writer):
        writer.write(f"{head}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"100" in await reader.readline()  # the request has been admitted and its body is read
        await reader.readline()
        writer.write(body[:1])
        asked = asyncio.create_task(stack.chat())
        held = asyncio.create_task(engine.requests.get())
        await asyncio.wait({asked, held}, return_when=asyncio.FIRST_COMPLETED)
        assert not asked.done()
        writer.write(body[1:])
        assert b"503" in await reader.readline()
        (await held).sink.end()
        assert (await asked).status == 200


async def test_biases_are_bounded_by_vocabulary_and_choices(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        answer = await stack.chat(logit_bias={str(id): 1 for id in range(5000)})
        assert answer.status == 400
        assert "vocabulary" in (await answer.json())["error"]["message"]
        many = {"model": MODEL, "prompt": ["a"] * 128, "logit_bias": {str(id): 1 for id in range(2049)}}
        answer = await stack.http.post(f"{stack.url}/v1/completions", json=many)
        assert answer.status == 400
        assert "at most 2048 are allowed" in (await answer.json())["error"]["message"]


async def test_an_escaped_path_is_limited_and_counted_like_the_plain_one(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, max_concurrent_requests=1) as stack:
        escaped = URL(f"{stack.url}/v1/chat/completion%73", encoded=True)
        first = asyncio.create_task(stack.http.post(escaped, json=CHAT))
        held = await engine.requests.get()
        assert (await stack.http.post(escaped, json=CHAT)).status == 503
        assert (await stack.chat()).status == 503
        held.sink.end()
        assert (await first).status == 200
        assert (await stack.metrics())['dynamo_frontend_inflight_requests{model="tiny"}'] == 0


async def test_pages_from_allowed_origins_may_read_answers(tmp_path: Path) -> None:
    ours, theirs = {"Origin": "https://ours.example"}, {"Origin": "https://theirs.example"}
    async with serving(tmp_path, cors_allow_origins=("https://ours.example",), api_keys=("k",)) as stack:
        url = f"{stack.url}/v1/chat/completions"
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = await stack.http.options(url, headers={**ours, **ask})
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == "https://ours.example"
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization"
        assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
        for stream in (False, True):
            answer = await stack.chat(headers={**ours, "x-api-key": "k"}, stream=stream)
            assert answer.headers["Access-Control-Allow-Origin"] == "https://ours.example"
        refused = await stack.chat(headers=ours)
        assert refused.status == 401
        assert refused.headers["Access-Control-Allow-Origin"] == "https://ours.example"
        stranger = await stack.chat(headers={**theirs, "x-api-key": "k"})
        assert "Access-Control-Allow-Origin" not in stranger.headers
        assert stranger.headers["Vary"] == "Origin"
        page = await stack.http.get(f"{stack.url}/", headers=ours)
        assert page.headers["Vary"] == "Accept-Encoding, Origin"


async def test_a_star_allows_all_origins_and_no_flag_none(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", cors_allow_origins=("*",)) as stack:
        answer = await stack.chat(headers={"Origin": "https://any.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    async with serving(tmp_path / "b") as stack:
        answer = await stack.chat(headers={"Origin": "https://any.example"})
        assert "Access-Control-Allow-Origin" not in answer.headers
        ask = {"Origin": "https://any.example", "Access-Control-Request-Method": "POST"}
        assert (await stack.http.options(f"{stack.url}/v1/models", headers=ask)).status == 405


async def test_while_draining_running_requests_finish_and_new_ones_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        running = asyncio.create_task(stack.chat(stream=True))
        held = await engine.requests.get()
        held.sink.tokens([100])
        answer = await running
        serving_task = asyncio.create_task(stack.server.serve())
        stack.runtime.shutdown()
        while (health := await stack.http.get(f"{stack.url}/health")).status == 200:
            pass
        assert (health.status, (await health.json())["stage"]) == (503, "draining")
        assert health.headers["Connection"] == "close"
        refused = await stack.chat()
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "1"
        assert (await stack.http.get(f"{stack.url}/live")).status == 200
        held.sink.tokens([101])
        held.sink.end()
        assert (await answer.text()).endswith("data: [DONE]\n\n")
        await serving_task
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        with pytest.raises(OSError, match="onnect"):
            await asyncio.open_connection("127.0.0.1", stack.port)


async def test_only_models_of_the_wanted_namespaces_are_served(tmp_path: Path) -> None:
    filters: Any
    for number, (filters, status) in enumerate(
        (
            ({}, 200),
            ({"namespace": "team-a"}, 200),
            ({"namespace": "team"}, 404),
            ({"namespace": "dynamo"}, 200),
            ({"namespace_prefix": "team"}, 200),
            ({"namespace": "team-a", "namespace_prefix": "other"}, 404),
        )
    ):
        async with serving(tmp_path / str(number), worker_namespace="team-a", **filters) as stack:
            assert (await stack.chat()).status == status
            health = await (await stack.http.get(f"{stack.url}/health")).json()
            assert bool(health["instances"]) == (status == 200)
