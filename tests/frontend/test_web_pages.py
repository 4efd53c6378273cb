"""A server without keys on a loopback address serves its machine, and no web page that a browser there shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.serving import CHAT, Served, serving

EVIL = "https://evil.example"
PATHS = ("/live", "/health", "/metrics", "/", "/v1/models", "/openapi.json", "/v1/files", "/api/tags", "/unknown")


async def statuses(stack: Served, paths: Sequence[str], **headers: str) -> list[int]:
    return [(await stack.http.get(stack.url + path, headers=headers)).status for path in paths]


async def post(stack: Served, path: str, kind: str | None, body: Any = CHAT, **headers: str) -> int:
    if kind is not None:
        headers["Content-Type"] = kind
    skipped = ["Content-Type"] if kind is None else []
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with stack.http.post(stack.url + path, data=data, headers=headers, skip_auto_headers=skipped) as answer:
        return answer.status


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""])
async def test_a_name_that_is_not_of_this_machine_is_refused_on_every_route(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path) as stack:
        assert set(await statuses(stack, PATHS, Host=host)) == {403}
        assert await post(stack, "/v1/chat/completions", "application/json", Host=host) == 403


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:8080", "proxy.example"],
)
async def test_names_of_this_machine_and_allowed_ones_are_served(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path, allowed_hosts=("proxy.example",)) as stack:
        for _ in range(2):
            assert await statuses(stack, ("/live", "/v1/models"), Host=host) == [200, 200]


async def test_a_client_of_http_1_0_need_not_name_a_host(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(b"GET /live HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 200 ")


async def test_a_server_with_keys_or_open_to_the_network_has_any_name(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("k",)) as stack:
        assert await statuses(stack, ["/v1/models"], Host="any.example", Authorization="Bearer k") == [200]
    async with serving(tmp_path, host="0.0.0.0") as stack:
        assert await statuses(stack, ["/v1/models"], Host="any.example") == [200]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", None]
)
@pytest.mark.parametrize("origin", [EVIL, "null"])
async def test_a_form_of_another_site_is_refused(tmp_path: Path, host: str, kind: str | None, origin: str) -> None:
    async with serving(tmp_path, host=host) as stack:
        assert await post(stack, "/api/chat", kind, Origin=origin) == 403
        assert await post(stack, "/v1/files", kind, Origin=origin) == 403
        assert await post(stack, "/v1/batches/a/cancel", kind, b"", Origin=origin) == 403


async def test_own_pages_trusted_ones_and_clients_that_are_no_browsers_may_send_any_type(tmp_path: Path) -> None:
    async with serving(tmp_path, cors_allow_origins=("https://ops.example",)) as stack:
        for headers in ({}, {"Origin": stack.url}, {"Origin": "https://ops.example"}):
            assert await post(stack, "/api/chat", "text/plain", **headers) == 200
        assert await post(stack, "/v1/chat/completions", "application/json", Origin=EVIL) == 200
    async with serving(tmp_path, cors_allow_origins=("*",)) as stack:
        assert await post(stack, "/api/chat", "text/plain", Origin=EVIL) == 200


async def test_a_key_is_all_that_a_page_needs(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("k",)) as stack:
        assert await post(stack, "/api/chat", "text/plain", Origin=EVIL, Authorization="Bearer k") == 200
