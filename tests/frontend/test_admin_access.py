"""Who may change or see the inside of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynamo.api.route import Access
from dynamo.frontend.routes.table import routes
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import CannotConnect, Disconnected, InvalidArgument
from support.serving import MODEL, Served, serving

ADMIN = [(route.method, route.path) for route in routes() if route.access is Access.ADMIN]
LIMIT = {"model": MODEL, "active_prefill_tokens_threshold": 5}

BODIES: dict[str, Any] = {"/busy_threshold": LIMIT, "/inspect": {"what": "stacks"}}


async def statuses(stack: Served, **headers: str) -> set[int]:
    found = set()
    for method, path in ADMIN:
        body: dict[str, Any] = {"json": BODIES[path]} if path in BODIES else {}
        place = path.format(worker="nobody", action="drain")
        async with stack.http.request(method, f"{stack.url}{place}", headers=headers, **body) as answer:
            # That there is no such worker is said to those who were let in.
            let_in = answer.status == 404 and "There is no worker 'nobody'" in await answer.text()
            found.add(200 if let_in else answer.status)
    return found


def test_the_routes_that_change_or_show_the_inside_are_for_administrators() -> None:
    assert ADMIN == [
        ("POST", "/clear_kv_blocks"),
        ("GET", "/router/decisions"),
        ("POST", "/inspect"),
        ("GET", "/fleet/events"),
        ("POST", "/fleet/workers/{worker}/{action}"),
        ("POST", "/busy_threshold"),
    ]


async def test_without_any_keys_this_machine_may(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        assert await statuses(stack) == {200}
        own = {"Origin": stack.url, "Host": stack.url.removeprefix("http://")}
        assert await statuses(stack, **own) == {200}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
    ],
)
async def test_without_any_keys_web_pages_may_not(tmp_path: Path, headers: dict[str, str]) -> None:
    async with serving(tmp_path, cors_allow_origins=("*",)) as stack:
        assert await statuses(stack, **headers) == {403}


async def test_a_page_that_the_operator_named_may(tmp_path: Path) -> None:
    async with serving(tmp_path, cors_allow_origins=("https://ops.example",)) as stack:
        assert await statuses(stack, Origin="https://ops.example") == {200}


async def test_keys_without_an_admin_key_close_them_with_a_sentence(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("user",)) as stack:
        assert await statuses(stack) == {401}
        assert await statuses(stack, Authorization="Bearer user") == {403}
        sent = {"Authorization": "Bearer user"}
        async with stack.http.post(f"{stack.url}/clear_kv_blocks", headers=sent) as answer:
            assert "started without --admin-key" in (await answer.json())["error"]["message"]


async def test_an_open_server_beyond_this_machine_has_them_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, host="0.0.0.0") as stack:
        stack.url = f"http://127.0.0.1:{stack.port}"
        assert await statuses(stack) == {403}


async def test_only_the_admin_key_opens_them_and_it_opens_the_rest_too(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("user",), admin_keys=("boss",)) as stack:
        assert await statuses(stack) == {401}
        assert await statuses(stack, Authorization="Bearer user") == {403}
        assert await statuses(stack, Authorization="Bearer boss", Host="any.example") == {200}
        assert (await stack.chat(headers={"Authorization": "Bearer boss"})).status == 200


async def test_an_admin_key_alone_leaves_models_open(tmp_path: Path) -> None:
    async with serving(tmp_path, admin_keys=("boss",)) as stack:
        assert (await stack.chat()).status == 200
        assert await statuses(stack) == {401}
        assert await statuses(stack, Authorization="Bearer boss") == {200}


async def test_null_removes_a_threshold(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        for value in (5, None):
            body = LIMIT | {"active_prefill_tokens_threshold": value}
            async with stack.http.post(f"{stack.url}/busy_threshold", json=body) as answer:
                assert (await answer.json())["active_prefill_tokens_threshold"] == value
        async with stack.http.post(f"{stack.url}/busy_threshold", json={"model": MODEL}) as answer:
            assert (await answer.json())["active_prefill_tokens_threshold"] is None


async def test_a_form_sets_no_threshold(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.http.post(f"{stack.url}/busy_threshold", data=LIMIT) as answer:
        assert answer.status == 415


@pytest.mark.parametrize(
    ("config", "headers", "shown"),
    [
        ({}, {}, True),
        ({"api_keys": ("user",)}, {}, False),
        ({"api_keys": ("user",)}, {"x-api-key": "user"}, True),
        ({"admin_keys": ("boss",)}, {}, False),
        ({"admin_keys": ("boss",)}, {"x-api-key": "boss"}, True),
    ],
)
async def test_addresses_of_workers_are_for_those_with_a_key(
    tmp_path: Path, config: dict[str, Any], headers: dict[str, str], shown: bool
) -> None:
    async with (
        serving(tmp_path, **config) as stack,
        stack.http.get(f"{stack.url}/health", headers=headers) as answer,
    ):
        (instance,) = (await answer.json())["instances"]
        assert ("address" in instance) == shown


def test_errors_for_clients_name_no_address() -> None:
    message = "cannot connect to 10.0.0.2:4711: refused; the connection to [fe80::1]:80 broke"
    assert CannotConnect(message).public_message == (
        "cannot connect to a worker: refused; the connection to a worker broke"
    )
    assert Disconnected("no answer from dynamo.requests.1f").public_message == "no answer from a worker"
    assert InvalidArgument("10.0.0.2:4711 is no image").public_message == "10.0.0.2:4711 is no image"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\u202eb", "a\x00"])
def test_a_model_cannot_have_a_name_with_control_characters(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a model's name"):
        ModelCard(name=name, model_type=1)
