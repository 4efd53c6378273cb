"""in=dyn:// and out=dyn: workers and those who find them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from support.running import run, running
from support.services import Etcd, Nats
from support.waiting import until_sync


def ask(url: str, model: str, text: str) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content


def test_a_server_finds_workers_that_join_and_outlives_those_that_leave(tmp_path: Path) -> None:
    with running(tmp_path, "in=http", "out=dyn", "--http-port", "0") as server:
        url = server.url()
        with running(tmp_path, "in=dyn://pool", "out=echo", "--model-name", "m") as first:
            first.line_with("worker for 'm' at dyn://dynamo.pool.generate")
            server.line_with("model 'm' can be served")
            with running(tmp_path, "in=dyn://pool", "out=echo", "--model-name", "m") as second:
                second.line_with("worker for 'm'")
                assert first.end() == 0
                assert ask(url, "m", "still here?") == "still here?"
                assert second.end() == 0
        server.line_with("model 'm' has no worker")
        assert server.end() == 0


def test_a_piped_prompt_is_answered_by_workers_that_are_found(tmp_path: Path, model: Path) -> None:
    words = ("in=dyn://a.b.c", "out=echo_core", str(model), "--migration-limit=3")
    with running(tmp_path, *words) as worker:
        worker.line_with("worker for 'small-model' at dyn://a.b.c")
        done = run(tmp_path, "in=stdin", "out=dyn", input="hello")
        assert (done.returncode, done.stdout) == (0, b"<|im_start|>user\nhello\n")
        done = run(tmp_path, "in=stdin", "out=dyn://a.b.c", "--model-name", "small-model", input="hello")
        assert done.stdout == b"<|im_start|>user\nhello\n"


def test_a_path_is_answered_by_its_own_workers_alone(tmp_path: Path, model: Path) -> None:
    with (
        running(tmp_path, "in=dyn://one_pool", "out=echo_core", str(model), "--model-name", "one") as one,
        running(tmp_path, "in=dyn://other_pool", "out=echo_core", str(model), "--model-name", "other") as other,
    ):
        one.line_with("worker for 'one' at dyn://dynamo.one_pool.generate")
        other.line_with("worker for 'other'")
        done = run(tmp_path, "in=stdin", "out=dyn://other_pool", input="hello")
        assert (done.returncode, done.stdout) == (0, b"<|im_start|>user\nhello\n")
        with running(tmp_path, "in=http", "out=dyn://one_pool", "--http-port", "0") as server:
            assert models(server.url()) == ["one"]
        with running(tmp_path, "in=http", "out=dyn", "--http-port", "0") as server:
            assert sorted(models(server.url())) == ["one", "other"]


def models(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        return [each["id"] for each in json.load(answer)["data"]]


def test_two_workers_of_one_name_must_be_alike(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, "in=dyn://a.b.c", "out=echo", "--model-name", "m") as worker:
        worker.line_with("worker for 'm'")
        done = run(tmp_path, "in=dyn://a.b.c", "out=echo_core", "--model-name", "m", str(model))
        assert done.returncode == 1
        assert "another card" in done.stderr.decode().splitlines()[-1]


def test_a_worker_that_takes_text_tells_how_often_its_requests_may_move(tmp_path: Path) -> None:
    with running(tmp_path, "in=http", "out=dyn", "--http-port", "0") as server:
        url = server.url()
        with running(tmp_path, "in=dyn://pool", "out=echo", "--model-name", "m", "--migration-limit", "3"):

            def limit_is_shown() -> bool:
                with urllib.request.urlopen(f"{url}/metrics") as metrics:
                    return b'dynamo_frontend_model_migration_limit{model="m"} 3' in metrics.read()

            until_sync(limit_is_shown)


@pytest.mark.parametrize(("input", "limit"), [("stdin", 0), ("stdin", 1), ("batch:p.jsonl", 1)])
def test_prompts_move_to_another_worker_as_often_as_they_may(
    tmp_path: Path, dies_once: tuple[str, ...], input: str, limit: int
) -> None:
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}')
    with running(tmp_path, *dies_once) as one, running(tmp_path, *dies_once) as other:
        one.line_with("worker for 'm'")
        other.line_with("worker for 'm'")
        done = run(tmp_path, f"in={input}", "out=dyn", "--migration-limit", str(limit), input="hello")
        assert done.returncode == (0 if limit else 1), done.stderr
        said = done.stdout if input == "stdin" else (tmp_path / "output.jsonl").read_bytes()
        assert (b"answered" in said) is bool(limit)


@pytest.mark.parametrize("plane", ["tcp", "nats"])
def test_two_machines_meet_by_etcd(tmp_path: Path, shared_etcd: Etcd, shared_nats: Nats, plane: str) -> None:
    network: Any = {"ETCD_ENDPOINTS": shared_etcd.url, "NATS_SERVER": shared_nats.url, "DYN_REQUEST_PLANE": plane}
    name = f"m-{plane}"
    with running(tmp_path, "in=http", "out=dyn", "--http-port", "0", **network) as server:
        url = server.url()
        words = (f"in=dyn://{name}.backend.generate", "out=echo", "--model-name", name)
        with running(tmp_path, *words, **network) as worker:
            worker.line_with("worker for")
            server.line_with(f"model '{name}' can be served")
            assert ask(url, name, "over the network") == "over the network"
            assert worker.end() == 0
        assert server.end() == 0


def test_a_worker_without_a_namespace_of_its_own_joins_that_of_the_environment(tmp_path: Path) -> None:
    with running(tmp_path, "in=dyn://pool", "out=echo", "--model-name", "m", DYN_NAMESPACE="zz") as worker:
        worker.line_with("worker for 'm' at dyn://zz.pool.generate")
        done = run(tmp_path, "in=stdin", "out=dyn", input="hello", DYN_NAMESPACE="zz")
        assert (done.returncode, done.stdout) == (0, b"hello\n")


def test_a_prompt_goes_to_workers_of_the_namespace_that_was_asked_for(tmp_path: Path) -> None:
    with (
        running(tmp_path, "in=dyn", "out=echo", "--model-name", "first", "--namespace", "aa") as first,
        running(tmp_path, "in=dyn", "out=echo", "--model-name", "second", "--namespace", "bb") as second,
    ):
        first.line_with("worker for")
        second.line_with("worker for")
        batch = tmp_path / "prompts.jsonl"
        batch.write_text('{"text": "hello"}\n')
        done = run(tmp_path, "in=batch:prompts.jsonl", "out=dyn", "--namespace", "bb", "-v")
        assert done.returncode == 0
        assert b"second" in done.stderr
        assert b"model 'first'" not in done.stderr


def test_more_v_log_more(tmp_path: Path) -> None:
    token = "plane-secret"
    words = ("in=dyn://a.b.c", "out=echo", "--model-name", "m")
    with running(tmp_path, *words, DYN_REQUEST_PLANE_TOKEN=token) as worker:
        worker.line_with("worker for 'm'")
        logs = []
        for more in ((), ("-v",), ("-vv",)):
            done = run(tmp_path, "in=stdin", "out=dyn", *more, input="hello", DYN_REQUEST_PLANE_TOKEN=token)
            assert done.stdout == b"hello\n"
            logs.append(done.stderr.decode())
    assert ["by round-robin" in log for log in logs] == [False, True, True]
    assert ["dynamo.runtime.plane.trace: to " in log for log in logs] == [False, False, True]
    assert ["dynamo.serving.stream_trace: request " in log for log in logs] == [False, False, True]
    assert ": REQUEST " in logs[2]
    assert token not in logs[2]
