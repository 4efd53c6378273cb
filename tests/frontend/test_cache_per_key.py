"""The cached prefixes of API keys are apart, unless the operator lets keys share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.toys import Live, Scripted, toy_card

MODEL = "org/toy"


async def salts(folder: Path, *asked: tuple[str | None, dict[str, Any]], **config: Any) -> list[str | None]:
    """What the worker got as salt for requests of these keys, with these further fields."""
    engine = Scripted()
    async with Live(**config) as live:
        live.http.headers["Authorization"] = f"Bearer {asked[0][0]}"
        await live.serve(engine.generate, toy_card(folder, MODEL))
        for key, more in asked:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more}
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with live.http.post(f"{live.url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
    routings = [request.get("routing") or {} for request in engine.requests]
    return [routing.get("cache_salt") for routing in routings]


async def test_each_key_has_a_salt_of_its_own(folder: Path) -> None:
    one, two, again = await salts(folder, ("one", {}), ("two", {}), ("one", {}), api_keys=("one", "two"))
    assert one == again != two
    assert one
    assert two


async def test_a_salt_that_the_client_sends_cannot_be_another_keys(folder: Path) -> None:
    (two,) = await salts(folder, ("two", {}), api_keys=("one", "two"))
    own, plain, split = await salts(
        folder, ("one", {"cache_salt": two}), ("one", {}), ("one", {"cache_salt": "a"}), api_keys=("one", "two")
    )
    assert len({two, own, plain, split}) == 4


async def test_keys_share_prefixes_where_the_operator_says_so(folder: Path) -> None:
    asked: tuple[tuple[str, dict[str, Any]], ...] = (("one", {}), ("two", {"cache_salt": "a"}))
    assert await salts(folder, *asked, api_keys=("one", "two"), share_kv_cache=True) == [None, "a"]


async def test_without_keys_there_is_no_salt_but_the_clients_own(folder: Path) -> None:
    assert await salts(folder, (None, {}), (None, {"cache_salt": "a"})) == [None, "a"]
