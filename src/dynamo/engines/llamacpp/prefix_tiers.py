"""Prefixes of llama.cpp in the tiers: copied out when a request ends, put back when a prompt begins with them.

They are copied segment by segment, so all prompts share what they have in common. Called in the engine's thread.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp.blocks import BlockMap
from dynamo.engines.llamacpp.decoder import DECODED, LlamaDecoder
from dynamo.engines.llamacpp.job import Job
from dynamo.kv.messages import KvChange, Tier
from dynamo.kv.tiers import KvSegment, TierStore

_CALIBRATION_TOKENS = 64
_UNSAVED = 4096
"""Segments that wait to be copied, at most."""


class PrefixTiers:
    def __init__(self, decoder: LlamaDecoder, blocks: BlockMap, store: TierStore) -> None:
        self.store = store
        self._decoder = decoder
        self._blocks = blocks
        self._segment = store.segment_tokens // blocks.block_size
        """Blocks of a segment."""
        self.unsaved: OrderedDict[int, tuple[list[int], int]] = OrderedDict()
        """By their keys: the hashes of a prompt, and where in them the segment ends."""

    def on_wake(self, wake: Callable[[], None]) -> None:
        """`wake` is called, by any thread, when there is something for the engine's thread to do."""
        self.store.wake = wake

    def announce(self) -> None:
        """Have `take_changes` begin with all that the tiers hold; may be called by any thread."""
        self.store.announced = True
        self.store.wake()

    def fetch(self, job: Job) -> bool:
        """Begin to read what of the prompt is on disk only; whether there is something to wait for."""
        hashes = self._shareable(job)
        first = self._blocks.lookup(hashes) // self._segment
        keys = hashes[(first + 1) * self._segment - 1 :: self._segment]
        if not keys or not (found := self.store.find(keys)):
            return False
        job.fetch = self.store.fetch(keys[: len(found)])
        return job.fetch is not None

    def is_fetched(self, job: Job) -> bool:
        """Whether all was read, or waiting is of no use any more."""
        fetch = job.fetch
        if fetch is None or fetch.finished:
            return True
        if time.monotonic() < fetch.due:
            return False
        self.store.abandon(fetch)
        return True

    def seconds_to_wait(self, fetching: Sequence[Job]) -> float | None:
        deadlines = [job.fetch.due for job in fetching if job.fetch is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def restore(self, job: Job, most: int | None) -> bool:
        """Put segments of at most `most` tokens after what the request holds; True if there are more."""
        held, size = job.held, self._blocks.block_size
        assert held is not None
        hashes = self._shareable(job)
        restored = 0
        while (end := self._next_end(len(held.blocks))) <= len(hashes):
            if held.tail:
                break
            found = self.store.get(hashes[end - 1], job.fetch)
            if found is None or self._blocks.cells - self._blocks.used < self.store.segment_tokens:
                break
            if most is not None and restored >= most:
                return True
            segment, tier, seconds = found
            start, begun = len(held.blocks), time.perf_counter()
            if not self._decoder.put(segment.data, held.number, start * size, end * size):
                self.store.failed(tier)
                break
            tokens = (end - start) * size
            self._blocks.grow(held, tokens, hashes[start:end], hashes[start - 1] if start else None)
            self.store.restored(segment, tier, tokens, seconds + time.perf_counter() - begun)
            job.computed = end * size
            if job.cached_tokens == start * size:
                job.cached_tokens = job.computed
            restored += tokens
        job.fetch = None
        return False

    def offer(self, job: Job) -> None:
        """The request releases its blocks: copy what is not in the tiers yet, by and by."""
        hashes = job.hashes[: job.computed // self._blocks.block_size]
        for end in range(self._segment, len(hashes) + 1, self._segment):
            key = hashes[end - 1]
            if key not in self.unsaved and len(self.unsaved) < _UNSAVED and self.store.wanted(key):
                self.unsaved[key] = (hashes, end)

    def save_one(self) -> None:
        """Copy one segment that the cache still holds, so that no step is late by more than that."""
        while self.unsaved:
            key, (hashes, end) = self.unsaved.popitem(last=False)
            if not self.store.wanted(key):
                continue
            begun = time.perf_counter()
            start = end - self._segment
            data = self._blocks.state(hashes, start, end)
            if not data:
                continue
            segment = KvSegment(tuple(hashes[start:end]), hashes[start - 1] if start else None, data)
            self.store.store(segment, time.perf_counter() - begun)
            return

    @contextlib.contextmanager
    def measured(self, counts: Sequence[int]) -> Iterator[None]:
        """Measure the step in the block, which computes `counts` tokens of the requests."""
        begun = time.perf_counter()
        yield
        prompts = sum(count for count in counts if count > 1)
        self.store.prefill.add_step(prompts, sum(counts), time.perf_counter() - begun)

    def calibrate(self) -> None:
        """Measure computing and restoring once, and that restoring works; raises EngineError if it does not."""
        decoder, count = self._decoder, min(_CALIBRATION_TOKENS, self._decoder.n_batch)
        decoder.token[:count] = np.arange(count) % decoder.vocab_size
        decoder.position[:count] = np.arange(count)
        decoder.sequence[:count] = 0
        decoder.wanted[:count] = 0
        decoder.wanted[count - 1] = 1
        seconds = 0.0
        for _ in range(2):  # the first one also allocates
            decoder.truncate(0, 0)
            begun = time.perf_counter()
            if decoder.decode(count) != DECODED:
                raise EngineError("llama.cpp cannot compute a prompt of the smallest size")
            decoder.logits(1)
            seconds = time.perf_counter() - begun
        self.store.prefill.add(count, seconds)
        state = decoder.copy(0, 0, count)
        decoder.truncate(0, 0)
        begun = time.perf_counter()
        works = decoder.put(state, 0, 0, count)
        seconds = time.perf_counter() - begun
        decoder.clear()
        if not works:
            raise EngineError("llama.cpp cannot restore the state of this model")
        if Tier.Host in self.store.costs:
            self.store.measured(Tier.Host, count, seconds)

    def weights(self) -> tuple[float | None, float | None]:
        return self.store.weights()

    def take_changes(self) -> list[tuple[Tier, KvChange]]:
        return self.store.take_changes()

    def clear(self) -> None:
        self.unsaved.clear()
        self.store.clear()

    def close(self) -> None:
        self.store.close()

    def _shareable(self, job: Job) -> list[int]:
        """The last token is always computed: its output is what the next one is sampled from."""
        if job.scoring:
            return []
        size = self._blocks.block_size
        known = len(job.tokens)
        job.hash_up_to(known // size)
        return job.hashes[: (known - 1) // size]

    def _next_end(self, blocks: int) -> int:
        return (blocks // self._segment + 1) * self._segment
