"""The chat page as the server sends it: its headers, its files, and who may have it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from typing import Any

import pytest

from dynamo.frontend.ui.pages import STATIC, TYPES, Pages
from dynamo.llm import ModelType
from support.toys import Live, Scripted, chat_text, text_card

LINK = re.compile(r'(?:href|src)="(ui/[^"]+)"')


async def fetched(live: Live, path: str, **headers: str) -> tuple[Any, bytes]:
    """The answer, and its body as it was sent."""
    headers = {"Accept-Encoding": "identity", **headers}
    async with live.http.get(path, headers=headers, auto_decompress=False) as answer:
        return answer, await answer.read()


async def test_the_pages_and_all_that_they_load_are_small(live: Live) -> None:
    loaded = set()
    for path in ("/", "/fleet"):
        links, size = await page_and_files(live, path)
        loaded |= links
        assert size < 60_000
    assert loaded == {path.name for path in STATIC.iterdir() if path.suffix in TYPES}


async def test_what_is_loaded_when_it_is_needed_is_small_and_has_its_licence(live: Live) -> None:
    version = LINK.findall(gzip.decompress((await fetched(live, "/", **{"Accept-Encoding": "gzip"}))[1]).decode())[0]
    for path in (STATIC / "vendor").glob("*.js"):
        file, packed = await fetched(live, f"/{version.rpartition('/')[0]}/{path.name}", **{"Accept-Encoding": "gzip"})
        assert file.status == 200
        assert len(packed) < 80_000
        assert path.with_suffix(".LICENSE").read_text()


async def page_and_files(live: Live, path: str) -> tuple[set[str], int]:
    """The names of all that a page loads, and how many bytes it is with them."""
    answer, packed = await fetched(live, path, **{"Accept-Encoding": "gzip"})
    assert (answer.status, answer.content_type, answer.headers["Content-Encoding"]) == (200, "text/html", "gzip")
    links = LINK.findall(gzip.decompress(packed).decode())
    size = len(packed)
    for link in links:
        file, body = await fetched(live, f"/{link}", **{"Accept-Encoding": "gzip"})
        assert (file.status, file.headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert "immutable" in file.headers["Cache-Control"]
        size += len(body)
    return {link.rpartition("/")[2] for link in links}, size


@pytest.mark.parametrize("path", ["/", "/fleet"])
async def test_the_policy_allows_nothing_inline_but_what_is_in_the_page(live: Live, path: str) -> None:
    answer, body = await fetched(live, path)
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert "unsafe" not in str(policy)
    assert policy["default-src"] == "'none'"
    inline = re.findall(rb"<(script|style)>(.*?)</\1>", body, re.DOTALL)
    assert [tag for tag, _ in inline] == [b"script", b"style"]
    for tag, text in inline:
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        assert f"'sha256-{digest}'" in policy[f"{tag.decode()}-src"]
    assert b" style=" not in body
    assert not re.search(rb"\son\w+=", body)


async def test_the_page_loads_nothing_from_elsewhere(live: Live) -> None:
    pages = [(await fetched(live, path))[1] for path in ("/", "/fleet")]
    texts = [*pages, *(file.body for file in Pages().files.values())]
    addresses = {address for text in texts for address in re.findall(rb"https?://[\w.]+", text)}
    assert addresses <= {b"http://www.w3.org"}


async def test_a_browser_that_has_the_page_is_not_sent_it_again(live: Live) -> None:
    for encoding in ("gzip", "identity"):
        first, _ = await fetched(live, "/", **{"Accept-Encoding": encoding})
        again, body = await fetched(
            live, "/", **{"Accept-Encoding": encoding, "If-None-Match": f'"other", {first.headers["ETag"]}'}
        )
        assert (again.status, body) == (304, b"")
        other, _ = await fetched(live, "/", **{"Accept-Encoding": encoding, "If-None-Match": '"other"'})
        assert other.status == 200


async def test_a_head_request_gets_the_headers_of_the_page(live: Live) -> None:
    async with live.http.head("/") as answer:
        assert (answer.status, answer.content_type) == (200, "text/html")


async def test_files_of_another_version_are_not_kept(live: Live) -> None:
    answer, _ = await fetched(live, "/ui/0/chat.js")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")


@pytest.mark.parametrize("path", ["/ui/0/style.css", "/ui/0/..%2fpages.py", "/ui/0/none.js", "/ui/", "/ui/0/a/b.js"])
async def test_only_the_files_of_the_page_are_served(live: Live, path: str) -> None:
    answer, _ = await fetched(live, path)
    assert answer.status == 404


async def test_without_the_page_its_paths_are_unknown() -> None:
    async with Live(ui=False) as live:
        for path in ("/", "/fleet", "/ui/0/chat.js"):
            answer, _ = await fetched(live, path)
            assert answer.status == 404


async def test_the_page_needs_no_key_and_what_it_asks_for_does() -> None:
    async with Live(api_keys=("secret",)) as live:
        for path, expected in (("/", 200), ("/fleet", 200), ("/v1/models", 401), ("/fleet/events", 401)):
            assert (await fetched(live, path))[0].status == expected


async def test_models_that_take_messages_are_said_to_take_pictures(live: Live, toy: Scripted) -> None:
    await live.serve(chat_text, text_card("text", ModelType.Chat), "toy.text.generate")
    for model, expected in (("text", True), ("org/toy", False)):
        _, shown = await live.post("/api/show", {"model": model})
        assert ("vision" in shown["capabilities"]) == expected
