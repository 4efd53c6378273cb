"""Computed prompts that one mocker hands to another: the blocks are real, their bytes and the transfer are modelled."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count

import msgspec
from msgspec import Struct

from dynamo.engines.base import HeldPrefix
from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.protocols.errors import InvalidArgument, ResourceExhausted, Unavailable

from .args import MockerArgs
from .blocks import BlockPool
from .ranks import Ranks

MOST_HELD = 0.5
"""The share of the blocks that offers may hold: a prefill worker must have room for further prompts."""


class MockState(Struct, frozen=True, array_like=True):
    block_size: int
    hashes: list[int]


class MockHandoffs(ABC):
    """The part of a mocker by which it hands prompts over."""

    def __init__(self, args: MockerArgs, ranks: Ranks) -> None:
        self.args = args
        self.ranks = ranks
        self._pools = [scheduler.pool for scheduler in ranks.schedulers]
        self._keys = count()
        self._held: dict[int, tuple[BlockPool, list[int], list[int]]] = {}
        """The pool, the blocks and their hashes."""

    @abstractmethod
    def _report_events_now(self) -> None: ...

    @abstractmethod
    def _report_load_soon(self) -> None: ...

    @property
    def transfer(self) -> str:
        return self.args.transfer

    def held_blocks(self) -> int:
        return sum(len(blocks) for _, blocks, _ in self._held.values())

    async def hold_prefix(self, token_ids: Sequence[int], cache_salt: str | None = None) -> HeldPrefix | None:
        """On the rank that has most of the prompt."""
        hashes = self._hashes(token_ids, cache_salt)
        pool, blocks = max(self._cached(hashes), key=lambda one: len(one[1]))
        if not blocks or self.held_blocks() + len(blocks) > MOST_HELD * pool.total:
            return None
        pool.hold(blocks)
        key = next(self._keys)
        self._held[key] = pool, blocks, hashes[: len(blocks)]
        return HeldPrefix(key=key, tokens=len(blocks) * self.args.block_size, blocks=len(blocks))

    async def held_state(self, held: HeldPrefix) -> bytes:
        found = self._held.get(held.key)
        if found is None:
            raise Unavailable("this prefix is not held (any more)")
        return msgspec.msgpack.encode(MockState(self.args.block_size, found[2]))

    async def release_prefix(self, held: HeldPrefix) -> None:
        pool, blocks, _ = self._held.pop(held.key, (None, [], []))
        if pool is not None:
            pool.release(blocks)
        self._report_load_soon()

    async def import_prefix(
        self, token_ids: Sequence[int], state: bytes, cache_salt: str | None = None, dp_rank: int | None = None
    ) -> int:
        """Takes as long as the modelled transfer."""
        rank = self.ranks.next_rank if dp_rank is None else dp_rank
        hashes = self._read(token_ids, state, cache_salt)
        if seconds := self._seconds(hashes, rank):
            await asyncio.sleep(seconds)
        self._store(hashes, rank)
        self._report_events_now()
        return len(hashes) * self.args.block_size

    def _read(self, token_ids: Sequence[int], state: bytes, cache_salt: str | None) -> list[int]:
        """The hashes of the blocks in a state, which must be the beginning of this prompt."""
        try:
            found = msgspec.msgpack.decode(state, type=MockState)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"not the state of a prefix: {error}") from None
        if found.block_size != self.args.block_size:
            raise InvalidArgument(f"the state has blocks of {found.block_size} tokens, not {self.args.block_size}")
        if found.hashes != self._hashes(token_ids, cache_salt)[: len(found.hashes)]:
            raise InvalidArgument("the state is of other tokens")
        return found.hashes

    def _seconds(self, hashes: list[int], dp_rank: int) -> float:
        """How long the transfer of these blocks would take."""
        args = self.args
        missing = len(hashes)
        if args.kv_transfer_timing_mode == "destination_missing":
            missing -= len(self._pools[dp_rank].lookup(hashes, len(hashes)))
        if not args.kv_transfer_bandwidth:
            return 0.0
        return missing * args.block_size * args.kv_bytes_per_token / (args.kv_transfer_bandwidth * 1e9)

    def _store(self, hashes: list[int], dp_rank: int) -> None:
        """Put the blocks into the cache of a rank."""
        pool = self._pools[dp_rank]
        known = len(pool.lookup(hashes, len(hashes)))
        fresh = hashes[known:]
        if len(fresh) > pool.free:
            raise ResourceExhausted(f"{len(fresh)} blocks arrived, {pool.free} are free")
        if fresh:
            blocks = pool.allocate(len(fresh))
            pool.store(blocks, fresh, hashes[known - 1] if known else None)
            pool.release(blocks)

    def _cached(self, hashes: list[int]) -> list[tuple[BlockPool, list[int]]]:
        """By rank."""
        return [(pool, pool.lookup(hashes, len(hashes))) for pool in self._pools]

    def _hashes(self, token_ids: Sequence[int], cache_salt: str | None) -> list[int]:
        size = self.args.block_size
        whole = len(token_ids) // size * size
        return sequence_hashes(local_hashes(token_ids[:whole], size, salt_seed(None, cache_salt)), None)
