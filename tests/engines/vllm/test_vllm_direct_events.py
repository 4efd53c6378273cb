"""KV events published by the thread of vLLM's scheduler, as subscribers see them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from vllm.config import VllmConfig
from vllm.distributed.kv_events import AllBlocksCleared, EventPublisherFactory, KVEventBatch

from dynamo.engines.vllm.direct_events import DirectEvents, DirectPublisher
from dynamo.llm.kv.engine_events import EngineCleared, decode_batch

PATIENCE_MS = 60_000
"""Only ends a test that hangs."""


def batch() -> KVEventBatch:
    return KVEventBatch(ts=1.0, events=[AllBlocksCleared()])


def events_in(folder: Path) -> DirectEvents:
    return DirectEvents(endpoint=f"ipc://{folder}/inproc-e", replay_endpoint=f"ipc://{folder}/inproc-r", topic="kv")


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[DirectPublisher]:
    made = EventPublisherFactory.create(VllmConfig(kv_events_config=events_in(tmp_path)).kv_events_config, 1)
    yield made
    made.shutdown()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        context.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        context.setsockopt(zmq.LINGER, 0)
        yield context


def replayed(context: zmq.Context[Any], folder: Path, start: int) -> list[int]:
    with context.socket(zmq.DEALER) as asking:
        asking.connect(f"ipc://{folder}/inproc-r_dp1")
        asking.send_multipart([b"", start.to_bytes(8, "big")])
        numbers = []
        while (number := int.from_bytes(asking.recv_multipart()[-2], "big", signed=True)) >= 0:
            numbers.append(number)
        return numbers


def test_a_subscriber_that_does_not_read_loses_nothing(
    publisher: DirectPublisher, context: zmq.Context[Any], tmp_path: Path
) -> None:
    with context.socket(zmq.SUB) as slow:
        slow.setsockopt(zmq.RCVHWM, 10)
        slow.connect(f"ipc://{tmp_path}/inproc-e_dp1")
        slow.subscribe("kv")
        published = 0
        while not slow.poll(0):  # what is published before the subscription is not sent
            publisher.publish(batch())
            published += 1
        for _ in range(20_000):
            publisher.publish(batch())
        first, *rest = [slow.recv_multipart()]
        begin = int.from_bytes(first[1], "big")
        rest = [slow.recv_multipart() for _ in range(begin + 1, published + 20_000)]
    assert [int.from_bytes(frames[1], "big") for frames in rest] == list(range(begin + 1, published + 20_000))
    decoded = decode_batch(rest[-1][2])
    assert (decoded.events, decoded.dp_rank) == ([EngineCleared()], 1)


def test_an_idle_engine_answers_replays(publisher: DirectPublisher, context: zmq.Context[Any], tmp_path: Path) -> None:
    for _ in range(5):
        publisher.publish(batch())
    assert replayed(context, tmp_path, 2) == [2, 3, 4]
    assert replayed(context, tmp_path, 5) == []


def test_a_batch_that_cannot_be_encoded_leaves_a_gap(
    publisher: DirectPublisher, context: zmq.Context[Any], tmp_path: Path
) -> None:
    for events in ([AllBlocksCleared()], [object()], [AllBlocksCleared()]):
        publisher.publish(KVEventBatch(ts=1.0, events=events))
    assert replayed(context, tmp_path, 0) == [0, 2]


def test_a_process_that_unpickles_the_configuration_has_the_publisher(tmp_path: Path) -> None:
    code = (
        "import pickle, sys\n"
        "from vllm.distributed.kv_events import EventPublisherFactory\n"
        "made = EventPublisherFactory.create(pickle.load(sys.stdin.buffer))\n"
        "made.shutdown()\n"
        "print(type(made).__name__)\n"
    )
    config = VllmConfig(kv_events_config=events_in(tmp_path)).kv_events_config
    child = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(config), stdout=subprocess.PIPE, check=True)
    assert child.stdout.decode().split() == [DirectPublisher.__name__]
