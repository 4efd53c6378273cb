"""Workers that tell their health and metrics over HTTP, as orchestrators and Prometheus ask for them."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.stack import TOY, Frontend, Process, Stack
from support.toys import samples, toy_folder
from support.waiting import until

HERE = {"DYN_SYSTEM_PORT": "0", "DYN_SYSTEM_HOST": "127.0.0.1"}
CHECKED = {
    **HERE,
    "DYN_HEALTH_CHECK_ENABLED": "true",
    "DYN_CANARY_WAIT_TIME": "0.05",
    "DYN_HEALTH_CHECK_REQUEST_TIMEOUT": "0.2",
}


async def url_of(worker: Process) -> str:
    line = await worker.line("status at http://")
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
    return url


async def health_once(url: str, status: int) -> dict[str, Any]:
    """What /health says when it first answers with this status."""

    async def answered() -> dict[str, Any] | None:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as answer:
            return await answer.json() if answer.status == status else None

    return await until(answered)


async def metrics(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        assert answer.status == 200
        return samples(await answer.text())


def of_generate(seen: dict[str, float], name: str) -> dict[str, float]:
    """By worker, of the endpoint that generates."""
    found = {}
    for series, value in seen.items():
        if series.startswith(f"dynamo_component_{name}{{") and 'dynamo_endpoint="generate"' in series:
            found[re.findall(r'worker_id="([0-9a-f]+)"', series)[0]] = value
    return found


async def ask(frontend: Frontend, model: str, text: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return await frontend.client.chat.completions.create(model=model, messages=messages, **options)


async def test_mockers_of_one_process_tell_one_status(stack: Stack, tmp_path: Path) -> None:
    model = toy_folder(tmp_path / "toy")
    flags = ("--model-path", str(model), "--num-workers", "2", "--speedup-ratio", "0")
    worker = await stack.python("-m", "dynamo.mocker", *flags, **HERE)
    url = await url_of(worker)
    assert (await health_once(url, 200))["endpoints"]["generate"] == "ready"
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    await frontend.until_instances(2)
    for _ in range(4):
        assert (await ask(frontend, "toy", "hello", max_tokens=5)).usage.completion_tokens == 5
    seen = await metrics(url)
    requests = of_generate(seen, "requests_total")
    assert sum(requests.values()) == 4
    assert {int(id, 16) for id in requests} == set(await frontend.instances())
    assert of_generate(seen, "request_duration_seconds_count") == requests
    assert set(of_generate(seen, "inflight_requests").values()) == {0}
    for name in ("request_bytes_total", "response_bytes_total", "request_duration_seconds_sum"):
        assert all(of_generate(seen, name).values()), name
    assert all(
        'dynamo_component="backend"' in series and 'model="toy"' in series and 'model_name="toy"' in series
        for series in seen
        if series.startswith("dynamo_component_requests_total{") and 'dynamo_endpoint="generate"' in series
    )
    assert seen["dynamo_component_uptime_seconds"] > 0


async def test_a_worker_of_ones_own_is_tried_with_its_payload_while_idle(stack: Stack) -> None:
    worker = await stack.python(TOY, **CHECKED)
    url = await url_of(worker)
    assert (await health_once(url, 200))["endpoints"] == {"generate": "ready"}
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    await ask(frontend, "toy", "break")
    assert (await health_once(url, 503))["endpoints"] == {"generate": "notready"}
    await worker.line("endpoint generate does not answer")
    await ask(frontend, "toy", "mend")
    await health_once(url, 200)
    seen = await metrics(url)
    (labels,) = [series for series in seen if series.startswith("dynamo_component_requests_total{")]
    for label in ('dynamo_namespace="toy"', 'dynamo_component="backend"', 'model="toy"'):
        assert label in labels
    assert of_generate(seen, "requests_total").popitem()[1] == 2, "those it was tried with are not counted"


async def test_a_worker_that_leaves_says_so_while_it_finishes(stack: Stack) -> None:
    worker = await stack.python(TOY, **HERE)
    url = await url_of(worker)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    await health_once(url, 200)
    stream = await ask(frontend, "toy", "forever", stream=True)
    await anext(aiter(stream))
    worker.signal(signal.SIGTERM)
    await health_once(url, 503)
    await stream.close()
    assert await worker.ended() == 0


async def test_a_port_in_use_ends_a_worker_with_one_line(stack: Stack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        worker = await stack.python(TOY, **{**HERE, "DYN_SYSTEM_PORT": port})
        assert await worker.ended() == 1
    (line,) = [line for line in worker.lines if line.startswith("error:")]
    assert line == f"error: the status port {port} on 127.0.0.1 is already in use; choose another with DYN_SYSTEM_PORT"


@pytest.mark.parametrize("environ", [{}, HERE])
async def test_a_frontend_and_a_worker_that_was_not_asked_tell_no_status(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    async with Stack(tmp_path, environ) as stack:
        frontend = await stack.frontend()
        assert "status at" not in frontend.process.output
        if not environ:
            worker = await stack.python(TOY)
            await frontend.until_models("toy")
            assert "status at" not in worker.output
