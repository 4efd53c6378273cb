"""Continuous batching: each step takes one token of every running request, and chunks of the prompts that are new.

Running requests come first, in the order of their arrival. Where the cache has no room left for them, cached prefixes
give way, then the newest request, which waits at the front of the queue and is computed again later.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from dynamo.engines.base import StepListener
from dynamo.engines.llamacpp.blocks import BlockMap
from dynamo.engines.llamacpp.decoder import ABORTED, DECODED, NO_ROOM, LlamaDecoder, Logits
from dynamo.engines.llamacpp.job import Job
from dynamo.engines.llamacpp.library import LOG
from dynamo.engines.llamacpp.prefix_tiers import PrefixTiers
from dynamo.engines.llamacpp.sampling import highest, logprobs, sample_plain
from dynamo.protocols.engine import EngineOutput, TopLogprob
from dynamo.protocols.errors import DynamoException, ResourceExhausted, Unknown, from_exception
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledPrompt, ScheduledRequestMetrics

log = logging.getLogger(__name__)

Output = int | EngineOutput | DynamoException
"""A bare token, an output with more (the last one has a `finish_reason`), or a failure."""


class Chunk(Struct, gc=False):
    """The tokens of one request that one step computes."""

    job: Job
    count: int


class LlamaScheduler:
    def __init__(
        self,
        decoder: LlamaDecoder,
        blocks: BlockMap,
        *,
        max_num_seqs: int,
        n_batch: int,
        tiers: PrefixTiers | None = None,
        exact: bool = False,
    ) -> None:
        """`exact`: every step computes what it would for the same request alone and from its beginning."""
        self.blocks = blocks
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.preemptions = 0
        self.was_aborted = False
        """The last step computed nothing, because `LlamaDecoder.abort` ended it."""
        self.give_way: Callable[[], bool] = lambda: False
        """Called when no request finds room; frees something that is held for others, if anything is."""
        self._crowded = False
        """llama.cpp had no room for the last step: the next one admits no request."""
        self._decoder = decoder
        self._max_num_seqs = 1 if exact else max_num_seqs
        self._exact = exact
        self._n_batch = n_batch
        self._caching = blocks.caching
        self.tiers = tiers
        self.on_step: StepListener | None = None
        self._decoded = False
        """The step under way computed its chunks."""
        self.fetching: list[Job] = []
        """Requests whose prefix is being read from a tier."""

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def prefill_tokens(self) -> int:
        """Known but not computed yet; what the cache may spare a waiting request is not foreseen."""
        return sum(
            len(job.tokens) - job.computed
            for job in (*self.running, *self.waiting, *self.fetching)
            if not job.generated
        )

    def add(self, job: Job) -> None:
        if self.tiers is not None and self.tiers.fetch(job):
            self.fetching.append(job)
        else:
            self.waiting.append(job)

    def add_fetched(self) -> None:
        """Let those wait for a place whose prefix was read, or is not read in time."""
        assert self.tiers is not None
        for job in [job for job in self.fetching if self.tiers.is_fetched(job)]:
            self.fetching.remove(job)
            self.waiting.append(job)

    def remove(self, job: Job) -> None:
        """Free what the request holds, if it is still there."""
        if job.held is not None:
            self.running.remove(job)
            self._release(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        elif job in self.fetching:
            self.fetching.remove(job)

    def clear_cache(self) -> bool:
        """Forget cached prefixes, unless there are requests."""
        if self.busy or self.fetching or not self.blocks.clear():
            return False
        if self.tiers is not None:
            self.tiers.clear()
        return True

    def step(self) -> list[tuple[Job, Output]]:
        """One decode, with what it means for each request; empty if it was aborted."""
        if self.on_step is not None:
            return self._reported_step(self.on_step)
        return self._step_of(self._schedule())

    def _reported_step(self, on_step: StepListener) -> list[tuple[Job, Output]]:
        begun = time.perf_counter()
        chunks = self._schedule()
        scheduled, queued = self._metrics(chunks)
        self._decoded = False
        outputs = self._step_of(chunks)
        if self._decoded:
            on_step(0, time.perf_counter() - begun, scheduled, queued)
        return outputs

    def _metrics(self, chunks: list[Chunk]) -> tuple[ScheduledRequestMetrics, QueuedRequestMetrics]:
        """What a step is about to compute, and what waits meanwhile."""
        contexts, prefills = [], []
        for chunk in chunks:
            job = chunk.job
            known = len(job.tokens)
            if job.generated and known == job.computed + 1:
                contexts.append(known)
            else:
                prefills.append(ScheduledPrompt(job.prompt_tokens, chunk.count, job.computed))
        outside = [*self.waiting, *self.fetching]
        return (
            ScheduledRequestMetrics.of(prefills, contexts),
            QueuedRequestMetrics.of(
                [job.prompt_tokens for job in outside if not job.generated],
                [len(job.tokens) for job in outside if job.generated],
            ),
        )

    def _step_of(self, chunks: list[Chunk]) -> list[tuple[Job, Output]]:
        if self.tiers is None:
            return self._step(chunks)
        with self.tiers.measured([chunk.count for chunk in chunks]):
            return self._step(chunks)

    def _step(self, chunks: list[Chunk]) -> list[tuple[Job, Output]]:
        if not chunks:
            if self.give_way():
                return []
            return [(self.waiting.popleft(), ResourceExhausted("the KV cache has no room for this request"))]
        outputs = self._decode(chunks)
        if outputs is not None:
            return outputs
        scores = any(chunk.job.scoring for chunk in chunks)
        logits = self._score(chunks) if scores else None
        finished = self._computed(chunks)
        if not finished:
            return []
        return self._sample(finished, self._decoder.logits(len(finished)) if logits is None else logits)

    def _schedule(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        budget = self._n_batch
        for prefilling in (False, True):
            for job in self.running:
                if prefilling and job.restoring and self._restores_more(job, chunks):
                    continue
                left = len(job.tokens) - job.computed
                if (left > 1) is prefilling and budget:
                    chunks.append(Chunk(job, self._count(job, budget)))
                    budget -= chunks[-1].count
        preempted = self.preemptions
        while not self.blocks.reserve(self._n_batch - budget):
            victim = self.running.pop()
            budget += sum(chunk.count for chunk in chunks if chunk.job is victim)
            chunks = [chunk for chunk in chunks if chunk.job is not victim]
            self._release(victim)
            self.waiting.appendleft(victim)
            self.preemptions += 1
        if self.waiting and preempted == self.preemptions and not self._crowded:
            self._admit(chunks, budget)
        self._crowded = False
        return chunks

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        # What running requests are known to need is theirs, whether in this step or later.
        promised = sum(len(job.tokens) - job.computed for job in self.running)
        size = self.blocks.block_size
        coming = {hash for job in self.running for hash in job.hashes[job.computed // size :]}
        while self.waiting and budget and len(self.running) < self._max_num_seqs:
            job = self.waiting[0]
            known = len(job.tokens)
            if self._caching:
                job.hash_up_to(known // size)
            # The last token is always computed: its output is what the next one is sampled from.
            shareable = [] if job.scoring else job.hashes[: (known - 1) // size]
            if coming and coming.intersection(shareable[self.blocks.lookup(shareable) :][:1]):
                # A running request computes this block now; share it afterwards instead of computing it twice.
                return
            held = self.blocks.begin(shareable, known, promised)
            if held is None:
                return
            self.waiting.popleft()
            self.running.append(job)
            job.held = held
            job.computed = len(held.blocks) * size
            if job.cached_tokens is None:
                job.cached_tokens = job.computed
            if self.tiers is not None and not job.scoring:
                job.restoring = True
                if self._restores_more(job, chunks):
                    promised += known - job.computed
                    continue
            chunks.append(Chunk(job, self._count(job, budget)))
            budget -= chunks[-1].count
            promised += known - job.computed
            coming.update(job.hashes[job.computed // size :])

    def _count(self, job: Job, budget: int) -> int:
        """How many tokens the next step computes of it: all, or as many as the worker did that began the answer."""
        left = len(job.tokens) - job.computed
        if not self._exact or left == 1:
            return min(left, budget)
        begun = job.prompt_tokens - len(job.resumed) - job.computed
        return min(begun, budget) if begun > 0 else 1

    def _restores_more(self, job: Job, chunks: list[Chunk]) -> bool:
        """Restore what follows from the tiers; True if more is to be restored in the next step.

        A step beside others restores no more tokens than it could compute, so that these do not wait for long.
        """
        assert self.tiers is not None
        job.restoring = self.tiers.restore(job, self._n_batch if chunks else None)
        return job.restoring

    def _decode(self, chunks: list[Chunk]) -> list[tuple[Job, Output]] | None:
        """None if all chunks were computed; else what is to be said, and nothing of them is computed."""
        count = self._fill(chunks)
        result = self._decoder.decode(count)
        self.was_aborted = result == ABORTED
        if result == DECODED:
            self._decoded = True
            return None
        for chunk in chunks:
            assert chunk.job.held is not None
            self._decoder.truncate(chunk.job.held.number, chunk.job.computed)
        if result == ABORTED:
            return []
        if result == NO_ROOM and self.blocks.forget_cached():
            self._crowded = True
            return []
        if result == NO_ROOM and len(self.running) > 1:
            victim = self.running[-1]
            self.remove(victim)
            self.waiting.appendleft(victim)
            self.preemptions += 1
            self._crowded = True
            return []
        error: DynamoException = Unknown(f"llama.cpp failed with {result}: {LOG.last_error}")
        if result == NO_ROOM:
            error = ResourceExhausted("the KV cache has no room for this request")
        for chunk in chunks:
            self.remove(chunk.job)
        return [(chunk.job, error) for chunk in chunks]

    def _fill(self, chunks: list[Chunk]) -> int:
        decoder = self._decoder
        token, position, sequence, wanted = decoder.token, decoder.position, decoder.sequence, decoder.wanted
        singles = 0
        for chunk in chunks:
            if chunk.count != 1 or chunk.job.scoring:
                break
            singles += 1
        if singles:
            rows = [chunk.job for chunk in chunks[:singles]]
            token[:singles] = [job.tokens[job.computed] for job in rows]
            position[:singles] = [job.computed for job in rows]
            sequence[:singles] = [job.held.number for job in rows if job.held is not None]
            wanted[:singles] = [len(job.tokens) == job.computed + 1 for job in rows]
        at = singles
        for chunk in chunks[singles:]:
            job, start, end = chunk.job, chunk.job.computed, at + chunk.count
            assert job.held is not None
            token[at:end] = job.tokens[start : start + chunk.count]
            position[at:end] = np.arange(start, start + chunk.count)
            sequence[at:end] = job.held.number
            wanted[at:end] = 0
            if job.scoring:
                scored = _to_score(chunk)
                wanted[at + scored.start - start : at + scored.stop - start] = 1
            if start + chunk.count == len(job.tokens):
                wanted[end - 1] = 1
            at = end
        return at

    def _computed(self, chunks: list[Chunk]) -> list[Job]:
        """Note what is computed; returns the requests that get a token, in the order of their rows."""
        size = self.blocks.block_size
        finished = []
        for chunk in chunks:
            job = chunk.job
            assert job.held is not None
            before = job.computed // size
            job.computed += chunk.count
            full = job.computed // size
            if full > before and self._caching:
                job.hash_up_to(full)
                parent = job.hashes[before - 1] if before else None
                self.blocks.grow(job.held, chunk.count, job.hashes[before:full], parent)
            else:
                self.blocks.grow(job.held, chunk.count, (), None)
            if job.computed == len(job.tokens):
                finished.append(job)
        return finished

    def _score(self, chunks: list[Chunk]) -> Logits:
        """Note the log probabilities of prompts; returns the rows of the requests that get a token."""
        ends = [chunk.job.computed + chunk.count == len(chunk.job.tokens) for chunk in chunks]
        scored = [_to_score(chunk) if chunk.job.scoring else range(0) for chunk in chunks]
        logits = self._decoder.logits(sum(map(len, scored)) + sum(ends))
        row, sampled = 0, []
        for chunk, positions, end in zip(chunks, scored, ends, strict=True):
            job = chunk.job
            for position in positions:
                job.scored.append(_with_own(logprobs(logits[row]), job.tokens[position + 1], job.prompt_logprobs))
                row += 1
            if end:
                sampled.append(row)
                row += 1
        return logits[sampled]

    def _sample(self, jobs: list[Job], logits: Logits) -> list[tuple[Job, Output]]:
        failed: dict[int, DynamoException] = {}
        plain = [row for row, job in enumerate(jobs) if job.plain]
        if len(plain) == len(jobs):
            ids = sample_plain(logits, [job.sampler for job in jobs])
        else:
            ids = [-1] * len(jobs)
            if plain:
                together = sample_plain(logits[plain], [jobs[row].sampler for row in plain])
                for row, id in zip(plain, together, strict=True):
                    ids[row] = id
            for row, job in enumerate(jobs):
                if ids[row] < 0:
                    try:
                        ids[row] = _sample_one(job, logits[row])
                    except Exception as error:  # the other requests of the step go on
                        if not isinstance(error, DynamoException):
                            log.exception("sampling failed")
                        failed[row] = from_exception(error)
        return [
            (job, self._output(job, id, logits, row) if row not in failed else self._failure(job, failed[row]))
            for row, (job, id) in enumerate(zip(jobs, ids, strict=True))
        ]

    def _failure(self, job: Job, error: DynamoException) -> DynamoException:
        self.remove(job)
        return error

    def _output(self, job: Job, id: int, logits: Logits, row: int) -> Output:
        job.tokens.append(id)
        job.sampler.add(id)
        generated = job.generated
        reason = None
        if id in job.ends and generated >= job.min_tokens:
            reason = "stop" if id in job.stop_ids else "eos"
        elif job.guide is not None and job.guide.complete:
            reason = "stop"
        elif generated >= job.max_tokens:
            reason = "length"
        if reason is None and job.logprobs is None and not job.scoring:
            return id
        output = EngineOutput(token_ids=[id])
        if job.scoring:
            output.prompt_logprobs, job.scored, job.scoring = job.scored, [], False
        if job.logprobs is not None:
            _add_logprobs(output, logits[row], id, job.logprobs)
        if reason is not None:
            output.finish_reason = reason
            output.stop_reason = id if id in job.stop_ids and reason == "stop" else None
            output.completion_usage = job.usage()
            self.remove(job)
        return output

    def _release(self, job: Job) -> None:
        assert job.held is not None
        if self.tiers is not None:
            self.tiers.offer(job)
        self.blocks.end(job.held)
        job.held = None
        job.computed = 0


def _sample_one(job: Job, logits: Any) -> int:
    banned = sorted(job.ends) if job.generated < job.min_tokens else None
    if job.guide is None:
        return job.sampler.sample(logits, banned)
    # A grammar that is satisfied may allow nothing but the end.
    id = job.sampler.sample(logits, None, job.guide.allowed())
    return job.guide.accept(id, job.max_tokens - job.generated - 1)


def _add_logprobs(output: EngineOutput, logits: Any, id: int, count: int) -> None:
    values = logprobs(logits)
    output.log_probs = [float(values[id])]
    output.top_logprobs = [_top(values, count)]


def _top(values: Any, count: int) -> list[TopLogprob]:
    return [
        TopLogprob(token_id=top, logprob=float(values[top]), rank=rank)
        for rank, top in enumerate(highest(values, count), 1)
    ]


def _with_own(values: Any, id: int, count: int) -> list[TopLogprob]:
    """The likeliest `count` tokens, and this one if it is not among them."""
    top = _top(values, count)
    if all(each.token_id != id for each in top):
        own = float(values[id])
        top.append(TopLogprob(token_id=id, logprob=own, rank=int((values > own).sum()) + 1))
    return top


def _to_score(chunk: Chunk) -> range:
    """The positions of the chunk whose output tells the log probability of the prompt's next token."""
    job, start = chunk.job, chunk.job.computed
    # After a preemption some are known already.
    first = max(start, len(job.scored) - 1)
    return range(first, max(first, min(start + chunk.count, job.prompt_tokens - 1)))
