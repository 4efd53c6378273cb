"""What dynamo-run says when it cannot do what it was told: one line, and an exit code."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from support.models import write
from support.running import run
from support.services import free_port


def failure(place: Path, line: str, *, code: int = 1, **env: Any) -> str:
    done = run(place, *line.split(), **env)
    told = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), told
    lines = [each for each in told.splitlines() if not each.startswith(("20", "no model given", "waiting", "loading"))]
    assert len(lines) == 1, told
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("in=htpp", "did you mean 'http'?"),
        ("--http-prot 1", "did you mean '--http-port'?"),
        ("in=http out=dyn --discovery-backend etdc", "did you mean 'etcd'?"),
        ("in=dyn://a.b!.c out=echo", "not a valid name"),
        ("in=dyn://a.b.c out=echo --discovery-backend memory", "no frontend would find this worker"),
        ("in=http out=dyn --discovery-backend memory --http-port 0", "out=dyn would find no worker"),
        ("in=dyn://a.b.c out=echo --namespace zz", "the namespace is given twice"),
        ("in=http out=echo --dyn-tool-call-parser hermse", "did you mean 'hermes'?"),
    ],
)
def test_wrong_use_exits_with_2(tmp_path: Path, line: str, words: str) -> None:
    assert words in failure(tmp_path, line, code=2)


def test_a_wrong_environment_is_wrong_use_too(tmp_path: Path) -> None:
    line = "in=http out=echo --http-port 0"
    assert "DYN_TOKEN_ECHO_DELAY_MS" in failure(tmp_path, line, code=2, DYN_TOKEN_ECHO_DELAY_MS="slow")
    assert "DYN_LOG" in failure(tmp_path, line, code=2, DYN_LOG="dynamo=loud")
    assert "DYN_HTTP_PORT" in failure(tmp_path, "in=http out=echo", code=2, DYN_HTTP_PORT="http")


def test_an_engine_that_is_not_installed_is_named_before_anything_is_read(tmp_path: Path) -> None:
    done = run(tmp_path, "out=vllm", "--extra-engine-args", "nowhere.json", "/nowhere/llama", input="hi")
    assert done.returncode == 1
    assert done.stderr.decode().startswith(
        "error: cannot load the engine 'vllm': No module named 'vllm'; pip install vllm"
    )
    assert done.stderr.count(b"\n") == 1


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "/nowhere/llama" in failure(tmp_path, "in=http out=echo_core /nowhere/llama --http-port 0")
    assert "HF_HUB_OFFLINE" in failure(tmp_path, "in=http out=echo_core org/name --http-port 0")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {"model_type": "llama"})
    assert "tokenizer.json" in failure(tmp_path, f"in=http out=echo_core {tmp_path} --http-port 0")


def test_a_tokenizer_that_is_broken_is_named(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {"model_type": "llama"})
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in failure(tmp_path, f"in=http out=echo_core {tmp_path} --http-port 0")


def test_a_context_longer_than_the_models_is_refused(tmp_path: Path, model: Path) -> None:
    assert "2048" in failure(tmp_path, f"in=http out=echo_core {model} --context-length 4096 --http-port 0")


def test_a_port_in_use_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = f"in=http out=echo_core /nowhere/llama --http-port {port}"
        assert f"port {port} on 127.0.0.1 is already in use" in failure(tmp_path, line)


def test_services_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    port = free_port()
    etcd = failure(tmp_path, "in=http out=dyn", ETCD_ENDPOINTS=f"http://127.0.0.1:{port}")
    assert f"cannot reach etcd at http://127.0.0.1:{port}" in etcd
    nats = failure(tmp_path, "in=http out=dyn --request-plane nats", NATS_SERVER=f"nats://127.0.0.1:{port}")
    assert f"cannot reach NATS at nats://127.0.0.1:{port}" in nats


def test_a_discovery_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in failure(tmp_path, "in=http out=dyn", DYN_FILE_KV=str(tmp_path / "file" / "kv"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("args.json", "{", "args.json"),
        ("args.json", "[1]", "names and their values"),
        ("args.yaml", "a: [", "args.yaml"),
        ("args.yaml", "1: 2", "names and their values"),
        ("none.json", None, "No such file"),
    ],
)
def test_extra_engine_args_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert words in failure(tmp_path, f"in=http out=echo --extra-engine-args {name} --http-port 0")


@pytest.mark.parametrize("text", ["{", "[]", '{"temperature": 9}', '{"max_completion_tokens": 0}', '{"top_p": 1}'])
def test_a_request_template_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    assert "--request-template t.json" in failure(tmp_path, "in=http out=echo --request-template t.json --http-port 0")


def test_the_trace_is_shown_only_on_request(tmp_path: Path) -> None:
    line = ["in=http", "out=echo_core", "/nowhere/llama", "--http-port", "0"]
    assert b"Traceback" not in run(tmp_path, *line).stderr
    assert b"Traceback" in run(tmp_path, *line, "-v").stderr


def test_standard_input_may_be_closed(tmp_path: Path) -> None:
    program = ["sh", "-c", f'exec "{sys.executable}" -m dynamo.cli.main out=echo <&-']
    done = run(tmp_path, program=program)
    assert (done.returncode, done.stderr.decode()) == (1, "error: there is no prompt on standard input\n")
