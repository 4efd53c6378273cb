"""in=http: the server, with an engine in the same process or with workers elsewhere."""

from __future__ import annotations

import json
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from support.running import RUN, running
from support.waiting import PATIENCE


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def test_it_says_where_it_is_and_how_to_try_it(tmp_path: Path) -> None:
    with running(tmp_path, "in=http", "out=echo_full", "--model-name", "my_model", "--http-port", "0") as server:
        url = server.url()
        curl = server.line_with("curl")
        body = json.loads(curl.partition("-d '")[2].removesuffix("'"))
        assert f"curl {url}/v1/chat/completions" in curl
        assert "--http-host 0.0.0.0" in server.line_with("network")
        assert [model["id"] for model in get(f"{url}/v1/models")["data"]] == ["my_model"]
        answer = post(f"{url}/v1/chat/completions", body)
        assert answer["choices"][0]["message"]["content"] == "What is the capital of France?"
        assert server.end() == 0


def test_streams_reach_the_official_client(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, "in=http", "out=echo_core", "--model-path", str(model), "--http-port=0") as server:
        client = openai.OpenAI(base_url=f"{server.url()}/v1", api_key="none")
        stream = client.chat.completions.create(
            model="small-model",
            messages=[{"role": "user", "content": "Tell me a story"}],
            max_completion_tokens=400,
            stream=True,
            extra_body={"nvext": {"ignore_eos": True}},
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == "<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\n"
        client.close()


def test_the_request_template_fills_what_requests_leave_out(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"model": "echo_full", "temperature": 0.1, "max_completion_tokens": 2}')
    words = ("in=http", "out=echo_full", "--request-template", "t.json", "--http-port", "0")
    with running(tmp_path, *words) as server:
        url = f"{server.url()}/v1/chat/completions"
        messages = [{"role": "user", "content": "abcdef"}]
        assert post(url, {"messages": messages})["choices"][0]["message"]["content"] == "ab"
        longer = {"messages": messages, "model": "echo_full", "max_completion_tokens": 4}
        assert post(url, longer)["choices"][0]["message"]["content"] == "abcd"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_answers_finish(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "in=http", "out=echo", "--http-port", "0", DYN_TOKEN_ECHO_DELAY_MS="20") as server:
        client = openai.OpenAI(base_url=f"{server.url()}/v1", api_key="none")
        stream = client.chat.completions.create(
            model="echo_full", messages=[{"role": "user", "content": "x" * 40}], stream=True
        )
        chunks = iter(stream)
        text = next(chunks).choices[0].delta.content or ""
        server.popen.send_signal(number)
        text += "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == "x" * 40
        assert server.wait() == 0
        client.close()


SLOW = """
import asyncio, pathlib

async def initialize(args):
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)

async def generate(request):
    yield {"choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def refusal(url: str, body: dict[str, Any] | None = None) -> tuple[int, str, str | None]:
    """Status, text and Retry-After of an answer that is an error."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=PATIENCE)
    with raised.value as answer:
        return answer.code, answer.read().decode(), answer.headers["Retry-After"]


def test_a_model_that_loads_is_loading_and_not_missing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    url = f"http://127.0.0.1:{free_port()}"
    with running(tmp_path, "in=http", "out=pystr:slow.py", "--http-port", url.rpartition(":")[2]) as server:
        server.line_with("loading slow")
        body = {"model": "slow", "messages": [{"role": "user", "content": "hi"}]}
        status, text, retry_after = refusal(f"{url}/v1/chat/completions", body)
        assert (status, retry_after) == (503, "1")
        assert "'slow' is loading" in text
        status, text, _ = refusal(f"{url}/health")
        assert (status, json.loads(text)["stage"]) == (503, "loading")
        assert get(f"{url}/v1/models")["data"] == []
        assert refusal(f"{url}/v1/models/other")[0] == 404
        (tmp_path / "go").touch()
        server.url()
        assert get(f"{url}/health")["status"] == "healthy"
        assert post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"] == "done"


@pytest.mark.parametrize("program", [[sys.executable, "-m", "dynamo.frontend"], [*RUN, "in=http", "out=dyn"]])
def test_a_server_without_workers_says_how_to_start_one(tmp_path: Path, program: list[str]) -> None:
    with running(tmp_path, "--http-port", "0", "--namespace", "zz", program=program) as server:
        url = server.url()
        words = server.line_with("no worker has joined yet").partition("dynamo-run ")[2].split()
        with running(tmp_path, words[0], "out=echo") as worker:
            worker.line_with("worker for")
            names: list[str] = []
            while not names:
                names = [model["id"] for model in get(f"{url}/v1/models")["data"]]
            assert names == ["echo_full"]


@pytest.mark.parametrize("variable", ["DYN_NAMESPACE", "DYN_NAMESPACE_PREFIX"])
def test_the_engine_of_the_process_is_served_whatever_the_namespace(tmp_path: Path, variable: str) -> None:
    environ: Any = {variable: "zz"}
    with running(tmp_path, "in=http", "out=echo", "--http-port", "0", **environ) as server:
        url = server.url()
        assert [model["id"] for model in get(f"{url}/v1/models")["data"]] == ["echo_full"]
        assert get(f"{url}/health")["endpoints"] == ["dyn://zz.backend.generate"]
