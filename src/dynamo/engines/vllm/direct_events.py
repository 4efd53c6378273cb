"""KV events published by the thread of vLLM's scheduler.

vLLM's own publisher passes each batch through a queue to a thread that encodes and sends it, and that competes with the
scheduler for the interpreter. Subscribers see no difference: the same messages on the same kinds of sockets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections import deque
from typing import Any

import msgspec
import zmq
from vllm.config import KVEventsConfig
from vllm.config.utils import config
from vllm.distributed.kv_events import EventPublisher, EventPublisherFactory, ZmqEventPublisher

log = logging.getLogger(__name__)

PUBLISHER = "dynamo-direct"
_END = (-1).to_bytes(8, "big", signed=True)


@config
class DirectEvents(KVEventsConfig):  # type: ignore[misc]
    """Chooses this publisher, also in a process that gets this configuration pickled: there it is registered first."""

    enable_kv_cache_events: bool = True
    publisher: str = PUBLISHER
    hwm: int = 0
    """Unlimited: messages wait for a slow subscriber."""

    def __post_init__(self) -> None:
        register()

    def __reduce__(self) -> Any:
        return _restored, (dataclasses.asdict(self),)


def _restored(fields: dict[str, Any]) -> DirectEvents:
    return DirectEvents(**fields)


def register() -> None:
    with contextlib.suppress(KeyError):  # it is registered already
        EventPublisherFactory.register_publisher(PUBLISHER, DirectPublisher)


class DirectPublisher(EventPublisher):  # type: ignore[misc]
    def __init__(
        self,
        data_parallel_rank: int,
        endpoint: str,
        replay_endpoint: str | None = None,
        buffer_steps: int = 10_000,
        hwm: int = 0,
        topic: str = "",
        **_: Any,
    ) -> None:
        super().__init__(data_parallel_rank)
        at = ZmqEventPublisher.offset_endpoint_port
        self._rank = data_parallel_rank
        self._topic = topic.encode()
        self._encode = msgspec.msgpack.Encoder().encode
        self._number = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.set_hwm(hwm)
        self._events.bind(at(endpoint, data_parallel_rank))
        if replay_endpoint:
            replays = self._context.socket(zmq.ROUTER)
            replays.linger = 0
            replays.bind(at(replay_endpoint, data_parallel_rank))
            threading.Thread(target=self._serve_replays, args=(replays,), name="kv-replays", daemon=True).start()

    def publish(self, events: Any) -> None:
        """Never blocks. A batch that cannot be sent leaves a gap in the numbers, so that subscribers notice."""
        number = self._number.to_bytes(8, "big")
        self._number += 1
        if events.data_parallel_rank is None:
            events.data_parallel_rank = self._rank
        try:
            payload = self._encode(events)
            with self._lock:
                self._kept.append((number, payload))
            self._events.send_multipart((self._topic, number, payload))
        except Exception:
            log.exception("KV events could not be published")

    def _serve_replays(self, socket: Any) -> None:
        """Waits without the interpreter's lock until a subscriber asks for batches from a number on."""
        with socket, contextlib.suppress(zmq.ContextTerminated):
            while True:
                client, *frames = socket.recv_multipart()
                start = frames[-1] if frames and len(frames[-1]) == 8 else _END
                with self._lock:
                    kept = list(self._kept)
                for number, payload in kept:
                    if number >= start:
                        socket.send_multipart((client, b"", self._topic, number, payload))
                socket.send_multipart((client, b"", b"", _END, b""))

    def shutdown(self) -> None:
        """Ends the thread too: it gets an error for a context that is closed."""
        self._events.close(linger=0)
        self._context.term()
