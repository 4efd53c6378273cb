"""Computed prompts that are held until another engine has fetched them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from dynamo.engines.base import HeldPrefix
from dynamo.engines.llamacpp.blocks import BlockMap, Held
from dynamo.engines.llamacpp.decoder import LlamaDecoder
from dynamo.engines.llamacpp.state import SequenceStates
from dynamo.kv.block_names import BlockNames, prompt_digest
from dynamo.protocols.errors import Unavailable

_MOST_CELLS = 0.5
"""The share of the cache that may be held: there must be room for further prompts."""


class HeldPrefixes:
    """Called in the engine's thread, between two steps. Held prefixes give way to requests that find no room."""

    def __init__(
        self, decoder: LlamaDecoder, blocks: BlockMap, states: SequenceStates, names: BlockNames, most: int
    ) -> None:
        """At most `most` are held at a time."""
        self.blocks_held = 0
        """May be read by any thread."""
        self._decoder = decoder
        self._blocks = blocks
        self._states = states
        self._names = names
        self._most = most
        self._keys = count()
        self._held: dict[int, tuple[Held, bytes]] = {}
        """With the digest of the prompt."""

    def hold(self, tokens: Sequence[int], cache_salt: str | None) -> HeldPrefix | None:
        size = self._blocks.block_size
        hashes = self._names.of(tokens, cache_salt)
        found = self._blocks.lookup(hashes)
        full = (self.blocks_held + found) * size > _MOST_CELLS * self._blocks.cells or len(self._held) >= self._most
        if not found or full or not self._decoder.rewinds:
            return None
        held = self._blocks.begin(hashes[:found], found * size)
        if held is None:
            return None
        key = next(self._keys)
        self._held[key] = held, prompt_digest(tokens[: found * size], cache_salt)
        self.blocks_held += found
        return HeldPrefix(key=key, tokens=found * size, blocks=found)

    def state(self, prefix: HeldPrefix) -> bytes:
        held = self._held.get(prefix.key)
        if held is None:
            raise Unavailable("this prefix is not held (any more)")
        return self._states.encode(*held)

    def release(self, prefix: HeldPrefix) -> None:
        self._end(prefix.key)

    def give_way(self) -> bool:
        """Release the oldest; False if there is none."""
        oldest = next(iter(self._held), None)
        if oldest is not None:
            self._end(oldest)
        return oldest is not None

    def _end(self, key: int) -> None:
        found = self._held.pop(key, None)
        if found is not None:
            held = found[0]
            self.blocks_held -= len(held.blocks)
            self._blocks.end(held)
