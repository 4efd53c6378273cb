"""`KvEventPublisher`, with which an engine author reports to routers which KV blocks a worker holds."""

from __future__ import annotations

import asyncio
import logging
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dynamo.kv.messages import Tier
from dynamo.kv.publish.engine_events import EngineBatch, EngineCleared, EngineRemoved, EngineStored
from dynamo.kv.publish.engine_listener import engine_address, listen
from dynamo.kv.publish.feed import component_of, kv_feed
from dynamo.kv.publish.translate import EngineRank
from dynamo.runtime import Component, Endpoint

log = logging.getLogger(__name__)

MAX_BATCHING_MS = 15_000
_MASK = (1 << 64) - 1


class KvEventPublisher:
    """One per (worker, dp rank). Create it on the runtime's event loop; publish from any thread.

    With `zmq_endpoint` it publishes the engine's own events from there; no method need be called.
    `enable_local_indexer` changes nothing: snapshots are always served. `image_token_id` and `kv_state_endpoint` are
    accepted for programs that pass them; blocks with images in them are not published, and snapshots have one place.
    """

    def __init__(
        self,
        endpoint: Endpoint | Component,
        worker_id: int | None = None,
        kv_block_size: int = 0,
        dp_rank: int = 0,
        enable_local_indexer: bool = False,
        zmq_endpoint: str | None = None,
        zmq_topic: str | None = None,
        batching_timeout_ms: int | None = None,
        image_token_id: int | None = None,
        kv_state_endpoint: Any = None,
        *,
        zmq_replay_endpoint: str | None = None,
    ) -> None:
        del enable_local_indexer, image_token_id, kv_state_endpoint
        # Programs that cannot pass None pass 0, which is no worker's id.
        worker_id = _within("worker_id", worker_id or 0, 0, 1 << 64) or None
        self.block_size = _within("kv_block_size", kv_block_size, 1, 1 << 32)
        self.dp_rank = _within("dp_rank", dp_rank, 0, 1 << 32)
        delay = _within("batching_timeout_ms", batching_timeout_ms or 0, 0, MAX_BATCHING_MS + 1)
        address = engine_address("zmq_endpoint", zmq_endpoint) if zmq_endpoint else None
        replay = engine_address("zmq_replay_endpoint", zmq_replay_endpoint) if zmq_replay_endpoint else None
        runtime = component_of(endpoint).runtime
        if worker_id not in (None, runtime.instance_id):
            log.warning(
                "KV events in the name of worker %x: routers ask that worker, and not this one, for snapshots",
                worker_id,
            )
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._feed = kv_feed(endpoint)
        rank = self._feed.rank(dp_rank, worker_id)
        rank.delay = delay / 1000
        self._rank = EngineRank(rank, self.block_size)
        self._closed = False
        self._listening: asyncio.Task[None] | None = None
        if address:
            self._listening = listen(component_of(endpoint), self._rank, address, zmq_topic or "", replay)

    def publish_stored(
        self,
        token_ids: Sequence[int],
        num_block_tokens: Sequence[int],
        block_hashes: Sequence[int],
        parent_hash: int | None = None,
        block_mm_infos: Sequence[Any] | None = None,
        lora_name: str | None = None,
        is_eagle: bool | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Consecutive blocks of a prompt are now cached. The first one that is not full and all after it are left out.

        `token_ids` are the tokens of all blocks, `num_block_tokens` how many each has. Hashes are the engine's own
        names, signed or unsigned. `parent_hash` is the block before the first; None at the start of the prompt.
        """
        self._submit(
            self._stored(
                token_ids, num_block_tokens, block_hashes, parent_hash, block_mm_infos, lora_name, is_eagle, cache_salt
            )
        )

    def publish_removed(self, block_hashes: Sequence[int]) -> None:
        """These blocks are gone; one that was stored several times is gone when it was removed as often."""
        self._submit(_removed(block_hashes))

    def publish_cleared(self) -> None:
        """The whole cache of this rank is gone."""
        self._submit(EngineCleared())

    def publish_batch(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Several changes in order: maps with `type` (stored, removed or cleared) and that method's arguments.

        Nothing is published if one of them is wrong.
        """
        constructors: dict[str, Callable[..., EngineStored | EngineRemoved | EngineCleared]] = {
            "stored": self._stored,
            "removed": _removed,
            "cleared": EngineCleared,
        }
        engine_events = []
        for at, event in enumerate(events):
            kind = event.get("type") if isinstance(event, Mapping) else None
            construct = constructors.get(kind) if isinstance(kind, str) else None
            if construct is None:
                raise ValueError(f"event {at}: a map whose type is stored, removed or cleared is needed, not {event!r}")
            try:
                engine_events.append(construct(**{name: value for name, value in event.items() if name != "type"}))
            except (ValueError, TypeError) as error:
                raise ValueError(f"event {at}: {error}") from None
        self._submit(*engine_events)

    def shutdown(self) -> None:
        """Publish that this rank holds nothing, and stop listening to the engine."""
        if self._closed:
            return
        self._closed = True
        self._on_loop(self._end)

    def _end(self) -> None:
        if self._listening:
            self._listening.cancel()
        self._rank.forget()
        self._feed.flush()

    def _stored(
        self,
        token_ids: Sequence[int],
        num_block_tokens: Sequence[int],
        block_hashes: Sequence[int],
        parent_hash: int | None = None,
        block_mm_infos: Sequence[Any] | None = None,
        lora_name: str | None = None,
        is_eagle: bool | None = None,
        cache_salt: str | None = None,
    ) -> EngineStored:
        tokens, eagle = _tokens(token_ids), bool(is_eagle)
        sizes = [_within("num_block_tokens", size, 0, 1 << 32) for size in num_block_tokens]
        hashes = _hashes("block_hashes", block_hashes)
        if len(sizes) != len(hashes):
            raise ValueError(f"num_block_tokens has {len(sizes)} entries, block_hashes {len(hashes)}")
        if sum(sizes) + (eagle and bool(sizes)) > len(tokens):
            raise ValueError(f"num_block_tokens asks for {sum(sizes)} tokens, token_ids has {len(tokens)}")
        if block_mm_infos is not None and len(block_mm_infos) != len(hashes):
            raise ValueError(f"block_mm_infos has {len(block_mm_infos)} entries, block_hashes {len(hashes)}")
        for name, value in (("lora_name", lora_name), ("cache_salt", cache_salt)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a string, not {type(value).__name__}")
        largest = max(sizes, default=0)
        full = next((at for at, size in enumerate(sizes) if size != self.block_size), len(sizes))
        return EngineStored(
            block_hashes=hashes,
            parent_hash=None if parent_hash is None else _hash("parent_hash", parent_hash),
            # The tokens end with the full blocks, and so does what is published.
            token_ids=tokens[: full * self.block_size + eagle],
            block_size=largest if largest > self.block_size else self.block_size,
            tier=Tier.Device,
            lora_name=lora_name,
            cache_salt=cache_salt,
            opaque=frozenset(at for at, info in enumerate(block_mm_infos or ()) if info),
            eagle=eagle,
        )

    def _submit(self, *events: EngineStored | EngineRemoved | EngineCleared) -> None:
        if self._closed:
            raise RuntimeError("this KvEventPublisher was shut down")
        batch = EngineBatch(events=list(events), dp_rank=self.dp_rank)
        self._on_loop(lambda: self._rank.take(batch))

    def _on_loop(self, action: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            action()
        else:
            self._loop.call_soon_threadsafe(action)


def _removed(block_hashes: Sequence[int]) -> EngineRemoved:
    return EngineRemoved(block_hashes=_hashes("block_hashes", block_hashes), tier=Tier.Device)


def _tokens(token_ids: Sequence[int]) -> list[int]:
    try:
        return array("I", token_ids).tolist()
    except (OverflowError, TypeError):
        for at, token in enumerate(token_ids):
            _within(f"token_ids[{at}]", token, 0, 1 << 32)
        raise


def _hashes(name: str, hashes: Sequence[int]) -> list[int]:
    return [_hash(f"{name}[{at}]", value) for at, value in enumerate(hashes)]


def _hash(name: str, value: int) -> int:
    return _within(name, value, -(1 << 63), 1 << 64) & _MASK


def _within(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise ValueError(f"{name} must be an integer in {low}..{high - 1}, not {value!r}")
    return value
