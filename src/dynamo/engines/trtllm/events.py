"""From TensorRT-LLM's KV cache events, which are dicts, to net changes of each rank's cache in sequence hashes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dynamo.kv.messages import Cleared, KvChange, Tier
from dynamo.kv.publish.engine_events import EngineBatch, EngineRemoved, EngineStored
from dynamo.kv.publish.translate import Translator

log = logging.getLogger(__name__)

_MASK = (1 << 64) - 1


class EventReader:
    """Keeps what each rank holds.

    A block in host memory is reused as one on the device is, so levels of the cache are not told apart. Of a model with
    several attention windows only the widest counts: the others do not make a prefix reusable.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ranks: dict[int, _RankBlocks] = {}
        self._window = 0

    def read(self, event: Any) -> tuple[int, list[KvChange]]:
        """The rank, and what happened to its blocks; an event that cannot be read makes all of them unknown."""
        number = event.get("attention_dp_rank") if isinstance(event, Mapping) else None
        number = number if isinstance(number, int) else 0
        rank = self._ranks.setdefault(number, _RankBlocks(self._block_size))
        try:
            window = int(event.get("window_size") or 0)
            if event["data"]["type"] == "created":
                self._window = max(self._window, window)
            changes = rank.missed(int(event["event_id"]))
            if window >= self._window:
                changes += rank.read(event["data"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("TensorRT-LLM sent a malformed KV event (%s); forgetting its blocks", error)
            return number, rank.forget()
        return number, changes


class _RankBlocks:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._translator = Translator(block_size)
        self._next: int | None = None

    def missed(self, event_id: int) -> list[KvChange]:
        """Events are numbered; TensorRT-LLM drops the oldest when they are not fetched in time."""
        expected, self._next = self._next, event_id + 1
        if expected is None or event_id == expected:
            return []
        log.warning("KV event %d of TensorRT-LLM is lost, the next is %d; forgetting its blocks", expected, event_id)
        return self.forget()

    def forget(self) -> list[KvChange]:
        self._translator = Translator(self._block_size)
        return [Cleared()]

    def read(self, data: Mapping[str, Any]) -> list[KvChange]:
        match data["type"]:
            case "stored":
                event: EngineStored | EngineRemoved | None = self._stored(data)
            case "removed":
                names = [_hash(name) for name in data["block_hashes"]]
                event = EngineRemoved(block_hashes=names, tier=Tier.Device)
            case _:
                event = None  # created; updated: another level or priority
        if event is None:
            return []
        translated = self._translator.translate(EngineBatch(events=[event], dp_rank=None))
        for reason in translated.skipped:
            log.debug("blocks of TensorRT-LLM are left out: %s", reason)
        return [change for _, change in translated.changes]

    def _stored(self, data: Mapping[str, Any]) -> EngineStored | None:
        """Only the full blocks: the last of a prompt may hold fewer tokens, and is stored again when it is full."""
        names: list[int] = []
        tokens: list[int] = []
        opaque: set[int] = set()
        for block in data["blocks"]:
            if len(block["tokens"]) < self._block_size:
                break
            if block.get("mm_keys") or any(token.get("token_extra_id") for token in block["tokens"]):
                opaque.add(len(names))
            names.append(_hash(block["block_hash"]))
            tokens += [int(token["token_id"]) for token in block["tokens"]]
        if not names:
            return None
        parent = data.get("parent_hash")
        return EngineStored(
            block_hashes=names,
            parent_hash=None if parent is None else _hash(parent),
            token_ids=tokens,
            block_size=self._block_size,
            tier=Tier.Device,
            opaque=frozenset(opaque),
        )


def _hash(value: Any) -> int:
    return int(value) & _MASK
