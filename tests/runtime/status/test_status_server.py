"""What a worker tells over HTTP of its health and of what it has done."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument, StartError, Unknown
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import Client, Context, DistributedRuntime, Endpoint, RuntimeConfig
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.status import StatusConfig
from support.limits import few_files
from support.sinks import Kept
from support.toys import metrics_once, samples
from support.waiting import PATIENCE, until

PAYLOAD = {"say": "hello"}


class Worker:
    """A runtime with a status server, and a client of its own endpoint."""

    def __init__(self, runtime: DistributedRuntime, http: aiohttp.ClientSession, url: str) -> None:
        self.runtime = runtime
        self.http = http
        self.url = url
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def endpoint(self) -> Endpoint:
        return self.runtime.endpoint("ns.backend.generate")

    async def serve(self, handler: Any, endpoint: Endpoint | None = None, **options: Any) -> Client:
        endpoint = endpoint or self.endpoint
        self.tasks.append(asyncio.create_task(endpoint.serve_endpoint(handler, **options)))
        client = await endpoint.client()
        await client.wait_for_instances()
        return client

    async def get(self, path: str = "/health") -> tuple[int, Any]:
        async with self.http.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.json()

    async def body_once(self, status: int, endpoints: dict[str, str] | None = None) -> Any:
        """The body of the first answer with this status (and these endpoints)."""

        async def answered() -> Any:
            seen, body = await self.get()
            return body if seen == status and endpoints in (None, body["endpoints"]) else None

        return await until(answered)

    async def metrics(self) -> dict[str, float]:
        async with self.http.get(f"{self.url}/metrics") as answer:
            assert answer.content_type == "text/plain"
            return samples(await answer.text())

    def named(self, name: str, **labels: str) -> str:
        """A series of the endpoint."""
        told = {
            "dynamo_namespace": "ns",
            "dynamo_component": "backend",
            "dynamo_endpoint": "generate",
            "worker_id": f"{self.runtime.instance_id:x}",
            **labels,
        }
        told["worker_name"] = worker_name(int(told["worker_id"], 16))
        inside = ",".join(f'{label}="{value}"' for label, value in sorted(told.items()))
        return f"dynamo_component_{name}{{{inside}}}"


Start = Callable[..., Any]


@pytest.fixture
def worker(caplog: pytest.LogCaptureFixture) -> Start:
    caplog.set_level(logging.INFO)

    @asynccontextmanager
    async def start(plane: str = "tcp", **status: Any) -> AsyncIterator[Worker]:
        network = RuntimeConfig.from_env({}, discovery_backend="memory", request_plane=plane)
        config = structs.replace(network, status=StatusConfig(**{"port": 0, "host": "127.0.0.1", **status}))
        async with DistributedRuntime(config=config) as runtime, aiohttp.ClientSession() as http:
            (url,) = re.findall(r"status at (http://[0-9.:]+)", caplog.text)
            one = Worker(runtime, http, url)
            yield one
            runtime.shutdown()
            await asyncio.gather(*one.tasks)

    return start


async def hello(request: Any) -> AsyncIterator[Any]:
    yield "hello"


async def test_a_worker_is_ready_once_it_serves(worker: Start) -> None:
    async with worker() as one:
        status, body = await one.get()
        assert (status, body["status"], body["endpoints"]) == (503, "notready", {})
        await one.serve(hello)
        body = await one.body_once(200)
        assert (body["status"], body["endpoints"]) == ("ready", {"generate": "ready"})
        assert body["uptime"].keys() == {"secs", "nanos"}
        assert (await one.get("/live"))[0] == 200
        async with one.http.get(f"{one.url}/other") as answer:
            assert (answer.status, await answer.text()) == (404, "Route not found")


async def test_an_auxiliary_endpoint_alone_does_not_make_a_worker_ready(worker: Start) -> None:
    async with worker() as one:
        found = asyncio.Event()
        beside = one.runtime.endpoint("ns.backend.beside")
        one.tasks.append(asyncio.create_task(beside.serve(GeneratorHandler(hello), auxiliary=True, on_found=found.set)))
        await found.wait()
        status, body = await one.get()
        assert (status, body["endpoints"]) == (503, {"beside": "ready"})
        await one.serve(hello)
        await one.body_once(200, {"beside": "ready", "generate": "ready"})


async def test_a_worker_is_not_ready_before_every_endpoint_it_serves_is_registered(
    worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker() as one:
        slow, go_on = one.runtime.endpoint("ns.backend.slow"), asyncio.Event()
        register = slow.register_endpoint_instance

        async def register_late() -> None:
            await go_on.wait()
            await register()

        monkeypatch.setattr(slow, "register_endpoint_instance", register_late)
        one.tasks.append(asyncio.create_task(slow.serve_endpoint(hello)))
        await one.serve(hello)
        await one.body_once(503, {"generate": "ready", "slow": "notready"})
        go_on.set()
        await one.body_once(200, {"generate": "ready", "slow": "ready"})


async def test_paths_and_the_first_status_can_be_chosen(worker: Start) -> None:
    async with worker(health_path="/well", live_path="/well", starts_ready=True) as one:
        assert (await one.get("/well"))[0] == 200
        async with one.http.get(f"{one.url}/health") as answer:
            assert answer.status == 404


async def test_endpoints_that_are_required_must_be_there(worker: Start) -> None:
    async with worker(required=("generate", "other"), starts_ready=True) as one:
        await one.serve(hello)
        await one.body_once(503, {"generate": "ready", "other": "notready"})
        await one.serve(hello, one.runtime.endpoint("ns.backend.other"))
        await one.body_once(200)


async def test_what_the_program_says_of_itself_counts(worker: Start) -> None:
    async with worker() as one:
        one.runtime.set_health_status(True)
        assert (await one.get())[0] == 200
        one.runtime.set_health_status(False)
        await one.serve(hello, health_check_payload=PAYLOAD)
        assert (await one.get())[0] == 503
        one.runtime.set_health_status(True)
        await one.body_once(200)


async def test_a_worker_that_leaves_is_not_ready_while_it_finishes(worker: Start) -> None:
    go_on = asyncio.Event()

    async def slow(request: Any) -> AsyncIterator[Any]:
        yield 1
        await go_on.wait()
        yield 2

    async with worker() as one:
        stream = await (await one.serve(slow)).generate({}, annotated=False)
        assert await anext(stream) == 1
        await one.body_once(200)
        one.runtime.shutdown()
        assert (await one.body_once(503))["endpoints"] == {"generate": "notready"}
        go_on.set()
        assert await anext(stream) == 2


async def test_requests_are_counted_with_the_endpoints_labels(worker: Start) -> None:
    labels = {"model": "m", "model_name": "org/m"}
    async with worker() as one:
        client = await one.serve(hello, metrics_labels=list(labels.items()))
        for _ in range(3):
            assert [item async for item in await client.generate({"a": 1}, annotated=False)] == ["hello"]
        metrics = await one.metrics()
        for name, value in (
            ("requests_total", 3),
            ("inflight_requests", 0),
            ("request_duration_seconds_count", 3),
            ("request_bytes_total", 3 * len(b"\x81\xa1a\x01")),
            ("response_bytes_total", 3 * len(b"\xa5hello")),
            ("cancellation_total", 0),
        ):
            assert metrics[one.named(name, **labels)] == value, name
        assert metrics[one.named("request_duration_seconds_sum", **labels)] > 0
        assert metrics["dynamo_component_uptime_seconds"] > 0
        assert not [name for name in metrics if name.startswith("dynamo_component_errors_total")]


async def test_tokens_count_as_bytes_of_the_answer(worker: Start) -> None:
    async def count(request: Any) -> AsyncIterator[dict[str, Any]]:
        for number in range(5):
            yield {"token_ids": [1000 + number]}

    async with worker() as one:
        client = await one.serve(count)
        channel = client.instance_set.channel(one.runtime.instance_id)
        await channel.open()
        reader = Kept()
        channel.send({}, Context(), reader, columnar=True)
        await reader.done
        assert reader.ids == [1000, 1001, 1002, 1003, 1004]
        # At least three bytes for each of these ids.
        assert (await one.metrics())[one.named("response_bytes_total")] > 15


@pytest.mark.parametrize("plane", ["tcp", "memory"])
async def test_failures_and_cancellations_are_told_apart(worker: Start, plane: str) -> None:
    async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
        yield "begun"
        if request == "fail":
            raise RuntimeError("broken")
        await context.async_killed_or_stopped()

    async with worker(plane) as one:
        client = await one.serve(handler)
        failing = await client.generate("fail", annotated=False)
        assert await anext(failing) == "begun"
        with pytest.raises(Unknown):
            await anext(failing)
        stream = await client.generate("wait", annotated=False)
        assert await anext(stream) == "begun"
        metrics = await one.metrics()
        assert metrics[one.named("inflight_requests")] == 1
        assert metrics[one.named("errors_total", error_type="generate")] == 1
        await stream.aclose()
        metrics = await metrics_once(one.metrics, lambda seen: not seen[one.named("inflight_requests")])
        assert metrics[one.named("cancellation_total")] == 1
        assert metrics[one.named("errors_total", error_type="generate")] == 1
        assert metrics[one.named("requests_total")] == 2


async def test_a_request_that_cannot_be_read_is_an_error_of_its_own(worker: Start) -> None:
    async with worker() as one:
        serving = asyncio.create_task(one.endpoint.serve(lambda *_: None, PreprocessedRequest))
        client = await one.endpoint.client()
        await client.wait_for_instances()
        with pytest.raises(InvalidArgument):
            await anext(await client.generate({"token_ids": "none"}))
        metrics = await one.metrics()
        assert metrics[one.named("errors_total", error_type="deserialization")] == 1
        assert metrics[one.named("requests_total")] == 1
        assert metrics[one.named("request_duration_seconds_count")] == 0
        one.runtime.shutdown()
        await serving


async def test_an_idle_endpoint_is_tried_and_believed(worker: Start) -> None:
    tried: list[Any] = []
    broken = False

    async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
        tried.append(dict(request))
        request.clear()
        if broken:
            await context.async_killed_or_stopped()
        yield "hello"

    async with worker(probes=True, idle=0.01, patience=0.05) as one:
        await one.serve(handler, health_check_payload=PAYLOAD)
        await one.body_once(200)
        broken = True
        assert (await one.body_once(503))["endpoints"] == {"generate": "notready"}
        broken = False
        await one.body_once(200)
        assert all(request == PAYLOAD for request in tried)
        assert (await one.metrics())[one.named("requests_total")] == 0, "they are not requests of anybody"


async def test_an_endpoint_is_tried_also_where_no_port_shows_its_health() -> None:
    tried = asyncio.Event()

    async def handler(request: Any) -> AsyncIterator[Any]:
        tried.set()
        yield "hello"

    network = RuntimeConfig.from_env({}, discovery_backend="memory")
    config = structs.replace(network, status=StatusConfig(probes=True))
    async with DistributedRuntime(config=config) as runtime, aiohttp.ClientSession() as http:
        one = Worker(runtime, http, "")
        await one.serve(handler, health_check_payload=PAYLOAD)
        async with asyncio.timeout(PATIENCE):
            await tried.wait()
        runtime.shutdown()
        await asyncio.gather(*one.tasks)


@pytest.mark.parametrize(
    "answer", [{"event": "error", "comment": ["no"]}, {"token_ids": [], "finish_reason": "error: no"}]
)
async def test_an_answer_that_tells_an_error_is_none(worker: Start, answer: dict[str, Any]) -> None:
    tried = asyncio.Event()

    async def handler(request: Any) -> AsyncIterator[Any]:
        yield answer
        tried.set()

    async with worker(probes=True, idle=0.01) as one:
        await one.serve(handler, health_check_payload=PAYLOAD)
        await tried.wait()
        assert (await one.get())[0] == 503


class Pauses:
    """Stands in for `asyncio.sleep`: a pause of `SECONDS` ends when the test says so."""

    SECONDS = 1234.5

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sleep = asyncio.sleep
        self._begun = asyncio.Semaphore(0)
        self._over = asyncio.Semaphore(0)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        if seconds == self.SECONDS:
            self._begun.release()
            await self._over.acquire()
        else:
            await self._sleep(seconds)

    async def begun(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._begun.acquire()

    def end(self) -> None:
        self._over.release()


async def test_an_endpoint_that_answers_others_is_not_tried(worker: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    async def handler(request: Any) -> AsyncIterator[Any]:
        nonlocal tried
        tried += request == PAYLOAD
        yield "hello"

    pauses = Pauses(monkeypatch)
    async with worker(probes=True, idle=Pauses.SECONDS) as one:
        client = await one.serve(handler, health_check_payload=PAYLOAD)
        await pauses.begun()
        assert tried == 1
        for _ in range(5):
            assert [item async for item in await client.generate({}, annotated=False)] == ["hello"]
            pauses.end()
            await pauses.begun()
        assert tried == 1
        pauses.end()
        await pauses.begun()
        assert tried == 2, "nobody was answered in the last pause"


async def test_runtimes_of_one_process_are_told_together(worker: Start) -> None:
    async with worker() as one, DistributedRuntime(config=one.runtime.config, status=one.runtime.status) as other:
        await one.serve(hello)
        client = await one.serve(hello, other.endpoint("ns.backend.generate"))
        await one.body_once(200)
        async for _ in await client.generate({}):
            pass
        metrics = await one.metrics()
        mine = one.named("requests_total", worker_id=f"{other.instance_id:x}")
        assert {metrics[mine], metrics[one.named("requests_total")]} == {0, 1}
        other.shutdown()
        await one.body_once(503)


async def test_a_port_in_use_is_told() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = structs.replace(RuntimeConfig.in_process({}), status=StatusConfig(port=port, host="127.0.0.1"))
        runtime = DistributedRuntime(config=config)
        with pytest.raises(StartError, match=f"status port {port} on 127.0.0.1 is already in use.*DYN_SYSTEM_PORT"):
            await runtime.start()
        await runtime.close()


@pytest.mark.parametrize("labels", [[("a-b", "c")], [("__a", "b")], [("a", 1)], [("worker_id", "7")]])
async def test_labels_that_cannot_be_are_refused(labels: list[tuple[str, Any]]) -> None:
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        with pytest.raises(InvalidArgument, match="metrics_labels"):
            await runtime.endpoint("ns.backend.generate").serve_endpoint(hello, metrics_labels=labels)


async def test_a_worker_can_be_inspected_over_its_status_port(worker: Start) -> None:
    """From this machine without a token; a web page may not ask."""
    async with worker() as one:
        async with one.http.post(f"{one.url}/inspect", json={"what": "log"}) as answer:
            assert answer.status == 200
            assert (await answer.text()).startswith('{"kind":"log","filter":')
        async with one.http.post(f"{one.url}/inspect", json={}, headers={"Origin": "http://evil"}) as answer:
            assert answer.status == 403


async def test_connections_beyond_the_limit_of_open_files_are_refused_and_the_others_served(worker: Start) -> None:
    async with worker() as one, aiohttp.ClientSession() as http, AsyncExitStack() as opened:
        await one.serve(hello)
        await one.body_once(200)
        with few_files():
            while True:
                connection = aiohttp.ClientSession()
                await opened.enter_async_context(connection)
                async with connection.get(f"{one.url}/health") as answer:
                    if answer.status != 200:
                        break
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert (await one.get())[0] == 200
        async with http.get(f"{one.url}/health") as answer:
            assert answer.status == 200
