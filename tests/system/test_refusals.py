"""What a user or a handler can get wrong, and the one clear line or status that comes of it."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from support.services import free_port
from support.stack import TOY, Stack


@pytest.mark.parametrize(
    ("flags", "environ", "code", "says"),
    [
        (["--router-mode", "fastest"], {}, 2, "--router-mode must be one of"),
        (["--discovery-backend", "zookeeper"], {}, 2, "memory, file, etcd or kubernetes"),
        (["--request-plane", "pigeon"], {}, 2, "memory, tcp or nats"),
        (["--event-plane", "pigeon"], {}, 2, "memory, zmq or nats"),
        (["--http-port", "99999"], {}, 2, "--http-port"),
        ([], {"DYN_HTTP_PORT": "eighty"}, 2, "DYN_HTTP_PORT"),
        ([], {"DYN_LOG": "dynamo=loud"}, 2, "DYN_LOG"),
        ([], {"ETCD_ENDPOINTS": "http://127.0.0.1:1"}, 1, "cannot reach etcd at http://127.0.0.1:1"),
        (["--request-plane", "nats"], {"NATS_SERVER": "nats://127.0.0.1:1"}, 1, "cannot reach NATS"),
        ([], {"DYN_FILE_KV": "/dev/null/folder"}, 1, "/dev/null/folder"),
    ],
)
async def test_a_frontend_that_cannot_start_says_why_in_one_line(
    flags: list[str], environ: dict[str, str], code: int, says: str, stack: Stack
) -> None:
    process = await stack.python("-m", "dynamo.frontend", *flags, **environ)
    assert await process.ended() == code
    said = [line for line in process.lines if line != "(end of output)"]
    assert len(said) == 1, process.output
    assert said[0].startswith("error: ")
    assert says in said[0]


@pytest.mark.parametrize("module", ["dynamo.frontend", "dynamo.mocker", "dynamo.router"])
async def test_an_unknown_flag_is_named_in_one_line(module: str, stack: Stack) -> None:
    needed = {"dynamo.mocker": ["--model-path", "x"], "dynamo.router": ["--endpoint", "a.b.c"]}.get(module, [])
    process = await stack.python("-m", module, *needed, "--no-such-flag")
    assert await process.ended() == 2
    assert process.lines[:-1] == [f"error: unknown flag '--no-such-flag'; see python -m {module} --help"]


async def test_a_taken_port_is_named_with_the_flag_that_changes_it(stack: Stack) -> None:
    first = await stack.frontend()
    port = first.url.rpartition(":")[2]
    process = await stack.python("-m", "dynamo.frontend", "--http-port", port)
    assert await process.ended() == 1
    assert f"port {port} on 127.0.0.1 is already in use; choose another with --http-port" in process.output
    assert "Traceback" not in process.output


async def test_a_worker_that_cannot_reach_etcd_says_so_in_one_line(stack: Stack) -> None:
    process = await stack.python(TOY, ETCD_ENDPOINTS=f"http://127.0.0.1:{free_port()}")
    assert await process.ended() == 1
    assert "start it, or use --discovery-backend file" in process.output
    assert "Traceback" not in process.output


async def test_verbose_start_up_failures_show_where(stack: Stack) -> None:
    process = await stack.python("-m", "dynamo.frontend", "-v", ETCD_ENDPOINTS="http://127.0.0.1:1")
    assert await process.ended() == 1
    assert "Traceback" in process.output


WORKER = """
import asyncio, uvloop
from dynamo.llm import ModelType, register_llm
from dynamo.llm.exceptions import HttpError
from dynamo.runtime import dynamo_worker

async def generate(request):
    if request["messages"][-1]["content"] == "media":
        raise HttpError(415, "only text here")
    if request["messages"][-1]["content"] == "value":
        raise ValueError("not like this")
    raise RuntimeError("out of memory at 0xdead")
    yield

@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.endpoint("a.b.c")
    await register_llm(ModelType.Chat, endpoint, "m")
    await endpoint.serve_endpoint(generate)

uvloop.install()
asyncio.run(worker())
"""


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_handler_raises_reaches_the_client_as_its_status(
    stream: bool, stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    worker = await stack.python(str(tmp_path / "worker.py"))
    frontend = await stack.frontend()
    await frontend.until_models("m")
    for word, status, says in (("media", 415, "only text here"), ("value", 400, "not like this")):
        with pytest.raises(openai.APIStatusError) as refused:
            await frontend.client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": word}], stream=stream
            )
        assert refused.value.status_code == status
        assert says in refused.value.message
    with pytest.raises(openai.InternalServerError) as failed:
        await frontend.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=stream
        )
    request_id = failed.value.response.headers["x-request-id"]
    assert request_id in failed.value.message
    await frontend.process.line(request_id)
    await worker.line("RuntimeError")
