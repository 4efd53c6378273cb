"""A real Envoy asks the picker: where requests go, what the servers get, and what happens without a picker."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.protocols.worker_name import worker_name
from gateway.install import ENVOY, why_missing
from observability.install import is_optional
from support.envoy import envoy
from support.running import Process, running
from support.services import free_port
from support.tiny_llama import tiny_llama_gguf
from support.waiting import until

pytestmark = pytest.mark.gateway
STOCK = Path(__file__).parents[1] / "support" / "stock_server.py"
HOSTS = ("127.0.0.2", "127.0.0.3")
FAMILIES, REQUESTS = 20, 1000
CHOSEN = re.compile(r"request (\S+): worker (\S+) rank 0")
SERVING = re.compile(r"the server (\S+) is worker (\S+), instance")


@pytest.fixture(scope="module", autouse=True)
def _there_is_an_envoy() -> None:
    if why := why_missing():
        (pytest.skip if is_optional() else pytest.fail)(f"there is no Envoy: {why}")


@contextmanager
def stock_servers(folder: Path) -> Iterator[list[str]]:
    model = tiny_llama_gguf(folder / "model.gguf")
    with ExitStack() as running_ones:
        addresses = []
        for host in HOSTS:
            port = free_port()
            words = [str(STOCK), str(model), host, str(port)]
            server = running_ones.enter_context(running(folder, *words, program=[sys.executable]))
            server.line_with("serving")
            addresses.append(f"{host}:{port}")
        yield addresses


def standalone(folder: Path, servers: list[str], *more: str) -> list[str]:
    given = [word for each in servers for word in ("--server", each)]
    model = ["--model-path", str(folder / "model.gguf"), "--model-name", "m", "--kv-event-port", "0"]
    return ["-m", "dynamo.epp", "--epp-mode", "standalone", *given, *model, *more]


@contextmanager
def picker(folder: Path, *words: str, port: int = 0, **env: str) -> Iterator[tuple[Process, str]]:
    flags = ("--epp-port", str(port), "--epp-health-port", "-1")
    with running(folder, *words, *flags, program=[sys.executable], **env) as process:
        yield process, process.line_with("picking on").split()[2]


def prompts(seed: int) -> Iterator[str]:
    """Conversations of several families; those of one share a long beginning."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    shared = ["".join(chance.choices(letters, k=160)) for _ in range(FAMILIES)]
    while True:
        yield chance.choice(shared) + "".join(chance.choices(letters, k=20))


async def ask(http: aiohttp.ClientSession, url: str, **fields: Any) -> tuple[int, str, str, bytes]:
    """The status, the server, the request's id and the body."""
    headers = fields.pop("headers", {})
    path = fields.pop("path", "/v1/completions")
    body = json.dumps({"model": "m", "max_tokens": 2, **fields})
    async with http.post(url + path, data=body, headers={"content-type": "application/json", **headers}) as answer:
        content = await answer.read()
        return answer.status, answer.headers.get("x-upstream", ""), headers.get("x-request-id", ""), content


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def thousand(http: aiohttp.ClientSession, url: str, **fields: Any) -> dict[str, str]:
    """The server of each of 1,000 requests, eight at a time, by the request's id; all are answered."""
    texts, went = prompts(7), {}
    numbers = iter(range(REQUESTS))

    async def one_after_the_other() -> None:
        for number in numbers:
            given = {"x-request-id": f"r{number}"}
            status, upstream, name, content = await ask(http, url, prompt=next(texts), headers=given, **fields)
            assert status == 200, content
            went[name] = upstream

    await asyncio.gather(*(one_after_the_other() for _ in range(8)))
    assert len(went) == REQUESTS
    return went


def compared(went: dict[str, str], log: list[str], endpoint_of: dict[str, str]) -> dict[str, int]:
    """How many requests each server got; each went where the router's log says."""
    chosen = {found[1]: endpoint_of[found[2]] for line in log if (found := CHOSEN.search(line))}
    assert went == {name: chosen[name] for name in went}
    counts: dict[str, int] = defaultdict(int)
    for upstream in went.values():
        counts[upstream] += 1
    return dict(counts)


@pytest.mark.parametrize("duplex", [False, True], ids=["buffered", "duplex"])
async def test_requests_to_stock_servers_go_where_the_router_says(
    tmp_path: Path, http: aiohttp.ClientSession, duplex: bool
) -> None:
    with (
        stock_servers(tmp_path) as servers,
        picker(tmp_path, *standalone(tmp_path, servers), DYN_LOG="info,dynamo.router=debug") as (process, address),
        envoy(ENVOY, tmp_path, [address], servers, duplex=duplex) as url,
    ):
        went = await thousand(http, url)
        process.end()
        said = [*process.said, *process.rest()]
        endpoint_of = {found[2]: found[1] for line in said if (found := SERVING.search(line))}
        counts = compared(went, said, endpoint_of)
    assert set(counts) == set(servers)


async def test_a_conversation_stays_where_its_beginning_is_cached(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with (
        stock_servers(tmp_path) as servers,
        picker(tmp_path, *standalone(tmp_path, servers)) as (_, address),
        envoy(ENVOY, tmp_path, [address], servers) as url,
    ):
        for number in range(6):
            beginning = f"{number} " + "once upon a time there was a router " * 6
            _, first, _, _ = await ask(http, url, prompt=beginning)
            for turn in range(3):
                _, then, _, content = await ask(http, url, prompt=f"{beginning} and turn {turn}")
                assert then == first
                assert json.loads(content)["usage"]["prompt_tokens_details"]["cached_tokens"] > 50


async def test_answers_pass_unchanged_and_mistakes_are_answered_by_the_servers(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with (
        stock_servers(tmp_path) as servers,
        picker(tmp_path, *standalone(tmp_path, servers)) as (_, address),
        envoy(ENVOY, tmp_path, [address], servers, duplex=True) as url,
    ):
        direct = f"http://{servers[0]}"
        for fields in (
            {"prompt": "hello", "stream": True, "max_tokens": 40, "temperature": 0, "seed": 1},
            {"prompt": "hello" * 100_000},  # too long for the model, and many messages for Envoy
            {"messages": "none", "path": "/v1/chat/completions"},
            {"prompt": "x", "path": "/v1/nothing"},
        ):
            through, straight = await ask(http, url, **fields), await ask(http, direct, **fields)
            assert (through[0], texts(through[3])) == (straight[0], texts(straight[3]))
        async with http.get(f"{url}/v1/models") as answer:
            assert answer.status == 200
        for server in servers:
            found = {(await ask(http, url, prompt="y", headers={"x-test-subset": server}))[1] for _ in range(4)}
            assert found == {server}
        status, _, _, content = await ask(http, url, prompt="y", headers={"x-test-subset": "127.0.0.9:1"})
        assert (status, json.loads(content)["error"]["type"]) == (503, "service_unavailable")
        wanted = {
            "x-gateway-destination-endpoint": "127.0.0.9:1",
            "x-gateway-destination-endpoint-subset": "127.0.0.9:1",
        }
        assert (await ask(http, url, prompt="y", headers=wanted))[0] == 200


def texts(content: bytes) -> list[Any]:
    """What an answer says, without its id, date and times."""
    if not content.startswith(b"data: "):
        found = json.loads(content)
        return [found.get("error") or [each["text"] for each in found["choices"]]]
    chunks = [line.removeprefix("data: ") for line in content.decode().splitlines() if line]
    return [chunk if chunk == "[DONE]" else json.loads(chunk)["choices"][0]["text"] for chunk in chunks]


async def test_requests_flow_while_the_picker_is_down_and_it_picks_again(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    port = free_port()
    with stock_servers(tmp_path) as servers, envoy(ENVOY, tmp_path, [f"127.0.0.1:{port}"], servers) as url:
        words = standalone(tmp_path, servers)

        async def spread() -> set[str]:
            answers = [await ask(http, url, prompt="the same beginning for all " * 4) for _ in range(10)]
            assert {status for status, *_ in answers} == {200}
            return {upstream for _, upstream, *_ in answers}

        assert await spread() == set(servers)
        with picker(tmp_path, *words, port=port):
            await until(lambda: _all_to_one(spread))
            under_way = asyncio.create_task(ask(http, url, prompt="z", stream=True, max_tokens=500, ignore_eos=True))
        assert (await under_way)[0] == 200
        assert await spread() == set(servers)
        with picker(tmp_path, *words, port=port):
            await until(lambda: _all_to_one(spread))


async def _all_to_one(spread: Any) -> bool:
    return len(await spread()) == 1


async def test_a_gateway_with_full_duplex_bodies_needs_a_second_picker(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """Without any picker Envoy answers 500, whatever its failure mode: it did not keep the body."""
    with stock_servers(tmp_path) as servers, ExitStack() as pickers:
        words = standalone(tmp_path, servers)
        made = [pickers.enter_context(picker(tmp_path, *words)) for _ in range(2)]
        with envoy(ENVOY, tmp_path, [address for _, address in made], servers, duplex=True) as url:
            made[0][0].popen.kill()
            made[0][0].wait()
            answers = [await ask(http, url, prompt=f"{number}") for number in range(40)]
            assert {status for status, *_ in answers} == {200}
            made[1][0].popen.kill()
            made[1][0].wait()
            assert (await ask(http, url, prompt="x"))[0] == 500


async def test_requests_to_our_workers_go_where_the_router_says(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """Two pods: a worker, and beside it a frontend that sends each request to the worker that its header names."""
    port = free_port()
    with ExitStack() as pods:
        network = {"DYN_LOG": "info", "DYN_PLANE_TOKEN": "secret"}
        for host in HOSTS:
            worker = ["-m", "dynamo.mocker", "--model-path", "tiny", "--model-name", "m", "--speedup-ratio", "100"]
            here = {**network, "DYN_TCP_RPC_HOST": host, "DYN_EVENT_PLANE_HOST": host, "DYN_SYSTEM_PORT": "0"}
            pods.enter_context(running(tmp_path, *worker, program=[sys.executable], **here)).line_with("serving dyn")
            sidecar = ["-m", "dynamo.frontend", "--router-mode", "direct", f"--http-host={host}", f"--http-port={port}"]
            process = pods.enter_context(
                running(tmp_path, *sidecar, "--api-key", "k", program=[sys.executable], **network)
            )
            process.line_with("serving on")
        servers = [f"{host}:{port}" for host in HOSTS]
        words = ["-m", "dynamo.epp", "--target-port", str(port)]
        environ: dict[str, Any] = {**network, "DYN_LOG": "info,dynamo.router=debug"}
        process, address = pods.enter_context(picker(tmp_path, *words, port=0, **environ))
        url = pods.enter_context(envoy(ENVOY, tmp_path, [address], servers))
        key = {"authorization": "Bearer k"}
        await until(lambda: _is_answered(http, url, key))
        went = {}
        texts_of = prompts(3)
        for number in range(200):
            headers = {**key, "x-request-id": f"r{number}", "x-dynamo-worker-instance-id": "1"}
            fields = {"prompt": next(texts_of), "nvext": {"extra_fields": ["worker_id"]}}
            status, upstream, name, content = await ask(http, url, headers=headers, **fields)
            assert status == 200, content
            went[name] = (upstream, json.loads(content)["nvext"]["worker_id"]["decode_worker_id"])
        process.end()
        said = [*process.said, *process.rest()]
    chosen = {found[1]: found[2] for line in said if (found := CHOSEN.search(line))}
    assert {name: worker_name(worker) for name, (_, worker) in went.items()} == {name: chosen[name] for name in went}
    assert len({(upstream, str(worker)) for upstream, worker in went.values()}) == 2
    assert {upstream for upstream, _ in went.values()} == set(servers)


async def _is_answered(http: aiohttp.ClientSession, url: str, key: dict[str, str]) -> bool:
    return (await ask(http, url, prompt="hello", headers=key))[0] == 200
