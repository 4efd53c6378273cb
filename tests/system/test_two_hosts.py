"""A frontend and its workers on two hosts, with etcd and NATS between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dynamo.model import bundled
from support.certificates import authority, signed
from support.hosts import Host, two_hosts
from support.models import byte_level_model
from support.running import SOURCE, Process, running
from support.services import Etcd, Nats
from support.waiting import PATIENCE, until_sync

pytestmark = pytest.mark.hosts

WORKER = ("in=dyn://llama3B.backend.generate", "out=mistralrs", "tiny")


class Site:
    """Host `a` with the services and the door, host `b` for the workers."""

    def __init__(self, folder: Path, a: Host, b: Host, environ: dict[str, str], stack: ExitStack) -> None:
        self.a = a
        self.b = b
        self._folder = folder
        self._environ = environ
        self._stack = stack

    def start(self, host: Host, *words: str, module: str = "dynamo.cli.main", **environ: str) -> Process:
        """A process of the host, in a folder of its own: hosts share no disk."""
        return self._running(host, host.inside(sys.executable, "-m", module), words, environ)

    def start_door(self, hidden: Path, size: str = "1m", **environ: str) -> Process:
        """The frontend on host `a`, where the folder `hidden` is an empty disk of this size."""
        program = self.a.inside_without(hidden, sys.executable, "-m", "dynamo.cli.main", size=size)
        return self._running(self.a, program, ("in=http", "out=dyn"), environ)

    def _running(self, host: Host, program: list[str], words: tuple[str, ...], environ: dict[str, str]) -> Process:
        place = self._folder / host.name
        place.mkdir(exist_ok=True)
        return self._stack.enter_context(running(place, *words, program=program, **(self._environ | environ)))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with two_hosts() as (a, b), ExitStack() as stack:
        servers = [
            Etcd(tmp_path / "etcd", 2379, a.address, a.inside()),
            Nats(tmp_path / "nats", 4222, a.address, a.inside()),
        ]
        for server in servers:
            stack.callback(server.stop)
            server.start()
        environ = {
            "ETCD_ENDPOINTS": f"{a.address}:2379",
            "NATS_SERVER": f"nats://{a.address}:4222",
            "DYN_PLANE_TOKEN": "of these hosts",
        }
        yield Site(tmp_path, a, b, environ, stack)


def capital(host: Host, url: str) -> str:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    status, answer = host.http(f"{url}/v1/chat/completions", body)
    return str(answer["choices"][0]["message"]["content"]) if status == 200 else f"{status}: {answer}"


class Asking:
    """A thread that asks again and again; `more` waits for further answers."""

    def __init__(self, host: Host, url: str) -> None:
        self.answers: list[str] = []
        self._host = host
        self._url = url
        self._arrived = threading.Condition()
        self._enough = False
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._enough = True
        self._thread.join()

    def _ask(self) -> None:
        while not self._enough:
            answer = capital(self._host, self._url)
            with self._arrived:
                self.answers.append(answer)
                self._arrived.notify()

    def more(self, count: int) -> None:
        with self._arrived:
            wanted = len(self.answers) + count
            assert self._arrived.wait_for(lambda: len(self.answers) >= wanted, PATIENCE)


def instances(host: Host, url: str) -> dict[int, str]:
    """Where each worker is, as the frontend was told."""
    _, told = host.http(f"{url}/health")
    return {one["instance_id"]: one["address"] for one in told["instances"]}


@pytest.mark.parametrize("plane", ["tcp", "nats"])
def test_workers_join_and_leave_on_another_host_and_requests_go_on(site: Site, plane: str) -> None:
    network = {"DYN_REQUEST_PLANE": plane}
    door = site.start(site.a, "in=http", "out=dyn", **network)
    url = door.url()
    first = site.start(site.b, *WORKER, **network)
    first.line_with("worker for 'tiny' at dyn://llama3B.backend.generate")
    door.line_with("model 'tiny' can be served")
    assert "Paris" in capital(site.a, url)
    (address,) = instances(site.a, url).values()
    assert plane == "nats" or address.startswith(f"{site.b.address}:")
    with Asking(site.a, url) as asking:
        second = site.start(site.b, *WORKER, **network)
        second.line_with("worker for 'tiny'")
        until_sync(lambda: len(instances(site.a, url)) == 2)
        asking.more(3)
        assert first.end() == 0
        asking.more(5)
    assert all("Paris" in answer for answer in asking.answers), asking.answers
    assert second.end() == 0
    door.line_with("model 'tiny' is gone")
    assert door.end() == 0


def test_a_worker_on_every_address_is_known_by_the_one_that_leads_to_etcd(site: Site) -> None:
    door = site.start(site.a, "in=http", "out=dyn")
    url = door.url()
    site.start(site.b, *WORKER, DYN_TCP_RPC_HOST="0.0.0.0").line_with("worker for 'tiny'")
    door.line_with("model 'tiny' can be served")
    (address,) = instances(site.a, url).values()
    assert address.startswith(f"{site.b.address}:")
    assert "Paris" in capital(site.a, url)


def test_without_a_secret_a_worker_does_not_open_its_planes(site: Site) -> None:
    worker = site.start(site.b, *WORKER, DYN_PLANE_TOKEN="")
    refusal = worker.line_with("error: other hosts could use")
    assert "DYN_PLANE_TOKEN" in refusal
    assert "--insecure-plane" in refusal
    assert worker.popen.wait(PATIENCE) == 1


def test_what_is_allowed_by_a_flag_works_without_a_secret(site: Site) -> None:
    door = site.start(site.a, "in=http", "out=dyn", "--insecure-plane", DYN_PLANE_TOKEN="")
    url = door.url()
    site.start(site.b, *WORKER, "--insecure-plane", DYN_PLANE_TOKEN="").line_with("without a secret")
    door.line_with("model 'tiny' can be served")
    assert "Paris" in capital(site.a, url)


STRANGER = """
import socket, ssl, sys
host, port = sys.argv[1].split(":")
for context in (None, ssl._create_unverified_context()):
    with socket.create_connection((host, int(port)), 10) as link:
        try:
            link = context.wrap_socket(link) if context else link
            link.sendall(bytes.fromhex("0000000c01") + b"\\x92\\xa6dynamo\\x02" + bytes(3))
            print(link.recv(1000).hex())
        except OSError as error:
            print(type(error).__name__)
"""


def test_two_hosts_with_certificates_serve_each_other_and_no_stranger(site: Site, tmp_path: Path) -> None:
    ca = authority(tmp_path)

    def files(host: Host) -> dict[str, str]:
        cert, key = signed(tmp_path, host.name, ca, f"IP:{host.address}")
        return {
            "DYN_TCP_TLS_CERT_PATH": str(cert),
            "DYN_TCP_TLS_KEY_PATH": str(key),
            "DYN_TCP_TLS_CA_CERT_PATH": str(ca[0]),
        }

    door = site.start(site.a, "in=http", "out=dyn", "--router-mode", "kv", **files(site.a))
    url = door.url()
    worker = site.start(site.b, *WORKER, **files(site.b))
    worker.line_with("protected by mutual TLS and a token")
    door.line_with("model 'tiny' can be served")
    assert "Paris" in capital(site.a, url)
    (address,) = instances(site.a, url).values()
    stranger = site.a.inside(sys.executable, "-c", STRANGER, address)
    done = subprocess.run(stranger, capture_output=True, timeout=PATIENCE, check=True)
    heard = done.stdout.decode().split()
    # At most a TLS alert (0x15) of seven bytes, never a frame.
    assert all(one.endswith("Error") or one == "" or (one.startswith("15") and len(one) == 14) for one in heard), heard
    worker.line_with("TLS failed")
    assert "Paris" in capital(site.a, url)


@pytest.mark.parametrize("events", ["zmq", "nats"])
def test_kv_events_cross_from_host_to_host(site: Site, tmp_path: Path, events: str) -> None:
    network = {"DYN_EVENT_PLANE": events}
    model = byte_level_model(tmp_path / "model")
    flags = ("--model-path", str(model), "--model-name", "m", "--block-size", "16", "--speedup-ratio", "100")
    door = site.start(site.a, "in=http", "out=dyn", "--router-mode", "kv", **network)
    url = door.url()
    site.start(site.b, *flags, module="dynamo.mocker", **network).line_with("serves 'm'")
    door.line_with("model 'm' can be served")
    body = {"model": "m", "prompt": "the quick brown fox jumps over the lazy dog " * 20, "max_tokens": 4}

    def is_known_to_be_cached() -> bool:
        status, answer = site.a.http(f"{url}/v1/completions", body)
        assert status == 200, answer
        _, told = site.a.http(f"{url}/router/decisions?limit=1")
        return any(one["overlap_blocks"] for one in told["decisions"][0]["candidates"])

    until_sync(is_known_to_be_cached)


def test_a_planner_with_defaults_reads_the_metrics_of_a_frontend_with_defaults(site: Site, tmp_path: Path) -> None:
    deployment = tmp_path / "serve.yaml"
    deployment.write_text("components: {frontend: {}, worker: {kind: mocker, flags: {model: tiny}}}")
    words = ("--deployment", str(deployment), "--load-adjustment-interval-seconds", "0.2")
    planner = site.start(site.a, *words, module="dynamo.planner")
    planner.line_with("saw 0.0 requests/s; workers stay at 1")
    assert planner.end() == 0


def bundled_copy(folder: Path) -> Path:
    """The bundled model as a folder of the operator's own."""
    shutil.copytree(bundled(), folder)
    return folder


def said(host: Host, url: str, model: str) -> str:
    """What the model answers, put together from the stream."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    command = host.inside("curl", "-sN", f"{url}/v1/chat/completions", "--json", json.dumps(body))
    stream = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True).stdout.decode()
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert events[-1] == "[DONE]", stream
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])


@pytest.mark.parametrize("plane", ["tcp", "nats"])
def test_a_host_without_the_models_files_gets_them_from_the_worker(site: Site, tmp_path: Path, plane: str) -> None:
    model = bundled_copy(tmp_path / "disk-of-b" / "paris")
    door = site.start_door(model.parent, DYN_REQUEST_PLANE=plane)
    url = door.url()
    first = site.start(site.b, "in=dyn://a.backend.generate", "out=mistralrs", str(model), DYN_REQUEST_PLANE=plane)
    door.line_with("fetching 5 files of model 'paris' from its workers")
    door.line_with("fetched 5 files of model 'paris'")
    door.line_with("model 'paris' can be served")
    assert said(site.a, url, "paris") == "The capital of France is Paris."
    # A frontend that starts again finds them in its cache, though the worker has lost them meanwhile.
    shutil.rmtree(model)
    assert door.end() == 0
    again = site.start_door(model.parent, DYN_REQUEST_PLANE=plane)
    again.line_with("model 'paris' can be served")
    assert not any("fetching" in line for line in again.said)
    assert said(site.a, again.url(), "paris") == "The capital of France is Paris."
    assert first.end() == 0


def test_a_host_without_the_gguf_file_gets_its_tokenizer_from_the_worker(site: Site, tmp_path: Path) -> None:
    model = bundled_copy(tmp_path / "disk-of-b") / "tiny.gguf"
    door = site.start_door(model.parent)
    url = door.url()
    site.start(site.b, "in=dyn://a.backend.generate", "out=mistralrs", str(model))
    door.line_with("fetched 1 files of model 'tiny'")
    door.line_with("model 'tiny' can be served")
    assert said(site.a, url, "tiny") == "The capital of France is Paris."


ECHO = """
import sys
import uvloop
from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker

@dynamo_worker
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("a.backend.generate")
    await register_llm(ModelType.Backend, endpoint, sys.argv[1], "echo")
    await endpoint.serve_endpoint(generate)

async def generate(request):
    yield {"token_ids": request["token_ids"], "finish_reason": "stop"}

uvloop.run(worker())
"""


def test_a_user_written_worker_sends_the_files_of_its_model(site: Site, tmp_path: Path) -> None:
    model = bundled_copy(tmp_path / "disk-of-b")
    door = site.start_door(model)
    url = door.url()
    (model / "echo.py").write_text(ECHO)
    site.start(site.b, str(model), module="echo", PYTHONPATH=os.pathsep.join([str(SOURCE), str(model)]))
    door.line_with("fetched 5 files of model 'echo'")
    door.line_with("model 'echo' can be served")
    assert "What is the capital of France?" in said(site.a, url, "echo")


def test_a_full_disk_is_named_and_the_model_is_tried_again_with_the_next_worker(site: Site, tmp_path: Path) -> None:
    model = bundled_copy(tmp_path / "disk-of-b" / "paris")
    cache = model.parent / "cache"
    door = site.start_door(model.parent, "64k", DYN_MODEL_CACHE=str(cache))
    door.url()
    worker = ("in=dyn://a.backend.generate", "out=mistralrs", str(model))
    site.start(site.b, *worker)
    door.line_with(f"cannot store model files in {cache}: No space left on device (DYN_MODEL_CACHE names")
    site.start(site.b, *worker)
    door.line_with("fetching 3 files")
    door.line_with("or as soon as a worker joins")
