"""What an API is to the HTTP process: rows in one place, and a contract that leads only one way."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec import Struct

import dynamo.api
from dynamo.api.answers.errors import Dialect
from dynamo.api.answers.http import json_response
from dynamo.api.catalog import APIS, line_endpoints
from dynamo.api.host import Host
from dynamo.api.route import Api, HttpCall, inference
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import Context
from dynamo.serving.batches.line import read_line
from dynamo.serving.conversation import Conversation
from dynamo.serving.request_template import RequestTemplate
from dynamo.serving.served_model import ServedModel
from support.serving import MODEL, serving

MODULES = sorted(module.name for module in pkgutil.walk_packages(dynamo.api.__path__, "dynamo.api."))


def loaded_by(module: str) -> list[str]:
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_no_api_loads_the_http_process() -> None:
    pytest.importorskip("grpc", reason="grpc is not installed")
    assert "dynamo.api.openai.chunks" in MODULES
    assert "dynamo.api.kserve.server" in MODULES
    loaded = loaded_by(", ".join(MODULES))
    assert set(MODULES) <= set(loaded)
    assert not [name for name in loaded if name.startswith(("dynamo.frontend", "dynamo.worker", "dynamo.engines"))]


def test_requests_are_served_without_any_api() -> None:
    loaded = loaded_by("dynamo.serving.conversation, dynamo.serving.batches.batches, dynamo.serving.request_template")
    assert not [name for name in loaded if name.startswith("dynamo.api")]


class ShoutRequest(Struct, forbid_unknown_fields=True):
    say: str
    longest: int | None = None
    model: str = MODEL


class Shout(Struct):
    shouted: str


class Alas(Struct):
    alas: str


async def shouted(model: ServedModel, request: ShoutRequest, context: Context, observer: Any = None) -> Shout:
    chat = ChatRequest(model=model.name, messages=[Message(role="user", content=request.say)])
    chat.max_tokens = request.longest
    conversation = Conversation(model, chat, context, observer)
    try:
        await conversation.prepare()
        text = conversation.completion(await conversation.collect()).choices[0].message.content
    finally:
        await conversation.close()
    return Shout(str(text).upper())


async def shout(host: Host, call: HttpCall[ShoutRequest]) -> web.StreamResponse:
    return json_response(await shouted(host.models.get(call.body.model), call.body, Context(), call.record))


def alas(error: DynamoException, request_id: str, status: int) -> Alas:
    return Alas(error.public_message)


async def shout_line(model: ServedModel, request: ShoutRequest, context: Context) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.to_builtins(await shouted(model, request, context))
    return answer


TOY = Dialect(Alas, alas, request_id="shout-id", client="shout-version")
TOY_API = Api(
    (
        inference(
            "/shout", shout, ShoutRequest, Shout, "Answer loudly",
            endpoint="shout", limits=("longest",), batched=shout_line, dialect=TOY,
        ),
    ),
    prefix="/shout/",
    dialect=TOY,
)  # fmt: skip


async def test_an_api_is_served_measured_and_documented_by_its_rows(tmp_path: Path) -> None:
    async with serving(tmp_path, apis=(*APIS, TOY_API)) as stack:
        async with stack.http.post(f"{stack.url}/shout", json={"say": "hello"}) as answer:
            assert answer.status == 200
            assert "HELLO" in (await answer.json())["shouted"]
            assert answer.headers["shout-id"] == answer.headers["x-request-id"]
        async with stack.http.get(f"{stack.url}/openapi.json") as answer:
            documented = (await answer.json())["paths"]["/shout"]["post"]
        assert documented["summary"] == "Answer loudly"
        counted = [name for name in await stack.metrics() if 'endpoint="shout"' in name]
        assert any(name.startswith("dynamo_frontend_requests_total") for name in counted)


async def test_an_api_answers_its_errors_in_its_own_dialect(tmp_path: Path) -> None:
    async with serving(tmp_path, apis=(*APIS, TOY_API)) as stack:
        for method, path, status in (("POST", "/shout", 400), ("GET", "/shout", 405), ("GET", "/shout/loudly", 404)):
            async with stack.http.request(method, f"{stack.url}{path}", json={"whisper": 1}) as answer:
                assert answer.status == status
                assert list(await answer.json()) == ["alas"]
                assert "shout-id" in answer.headers
        async with stack.http.get(f"{stack.url}/v1/models") as answer:
            assert "shout-id" not in answer.headers
        async with stack.http.get(f"{stack.url}/v1/models", headers={"shout-version": "1"}) as answer:
            assert answer.headers["shout-id"] == answer.headers["x-request-id"]


async def test_an_operators_template_fills_in_the_limit_that_a_row_names(tmp_path: Path) -> None:
    template = RequestTemplate(max_completion_tokens=2)
    async with serving(tmp_path, apis=(*APIS, TOY_API), request_template=template) as stack:

        async def length(**body: Any) -> int:
            async with stack.http.post(f"{stack.url}/shout", json={"say": "hello world", **body}) as answer:
                return len((await answer.json())["shouted"])

        assert await length() == await length(longest=2) < await length(longest=9)


async def test_a_row_says_how_the_lines_of_a_batch_are_read_and_answered(tmp_path: Path) -> None:
    endpoint = line_endpoints((TOY_API,))["/shout"]
    line = msgspec.json.encode({"custom_id": "1", "method": "POST", "url": "/shout", "body": {"say": "hello"}})
    request = read_line(line, "/shout").request(endpoint, None, RequestTemplate(max_completion_tokens=2))
    assert request == ShoutRequest("hello", longest=2)
    request.longest = None
    async with serving(tmp_path) as stack:
        answer = await endpoint.answer(stack.server.models.get(MODEL), request, Context())
    assert "HELLO" in answer["shouted"]
