"""KV events as SGLang publishes them: three frames, tagged maps, signed hashes."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import msgspec
import zmq


class KvPublisher:
    def __init__(self, config: dict[str, Any], page_size: int) -> None:
        self._page_size = page_size
        self._held: dict[int, tuple[int, ...]] = {}
        self._numbers = itertools.count()
        self._socket: Any = None
        self._context = zmq.Context()
        if config.get("publisher") == "zmq":
            self._socket = self._context.socket(zmq.XPUB)
            self._socket.bind(config["endpoint"])

    def wait_for_listener(self) -> None:
        assert self._socket.poll(20_000)
        self._socket.recv()

    def take(self, ids: list[int]) -> int:
        """Store the full pages of a prompt; returns the tokens that were cached already."""
        parent: int | None = None
        new: list[tuple[int, int | None, tuple[int, ...]]] = []
        cached = 0
        for at in range(0, len(ids) - len(ids) % self._page_size, self._page_size):
            page = tuple(ids[at : at + self._page_size])
            name = int.from_bytes(hashlib.sha256(repr((parent, page)).encode()).digest()[:8], "big", signed=True)
            if name in self._held:
                cached += self._page_size
            else:
                self._held[name] = page
                new.append((name, parent, page))
            parent = name
        if new:
            self._publish(
                {
                    "type": "BlockStored",
                    "block_hashes": [name for name, _, _ in new],
                    "parent_block_hash": new[0][1],
                    "token_ids": [token for _, _, page in new for token in page],
                    "block_size": self._page_size,
                    "lora_id": None,
                    "medium": "GPU",
                }
            )
        return cached

    def remove(self, count: int) -> None:
        names = list(self._held)[-count:]
        for name in names:
            del self._held[name]
        self._publish({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"})

    def clear(self) -> None:
        self._held.clear()
        self._publish({"type": "AllBlocksCleared"})

    def _publish(self, event: dict[str, Any]) -> None:
        if self._socket is not None:
            payload = msgspec.msgpack.encode([1.5, [event], 0])
            self._socket.send_multipart([b"", next(self._numbers).to_bytes(8, "big"), payload])

    def close(self) -> None:
        self._context.destroy(linger=0)
