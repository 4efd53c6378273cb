"""vLLM's V1 scheduler as a state machine, which returns how long each iteration takes.

An iteration has one budget of tokens. Running requests take from it first, in order; what is left admits waiting ones.
A request that finds no free block makes the newest running one give up its blocks and wait at the front of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from msgspec import Struct

from dynamo.kv.hashing import BASE_SEED
from dynamo.kv.messages import KvChange, Tier, TierReport
from dynamo.protocols.engine import SessionName
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledPrompt, ScheduledRequestMetrics

from .args import MockerArgs
from .blocks import BlockPool
from .sequence import Sequence
from .tiers import MockTiers
from .timing import Timing
from .tokens import MockAnswer

_FOLD_MOST = 256


class Finished(Struct, frozen=True):
    request_id: int
    finish_reason: str
    stop_reason: int | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class StepResult(Struct):
    """What one iteration of one rank did, or several folded into one: `steps` says how many."""

    answered: list[Sequence]
    """Each got `steps` tokens."""
    finished: list[Finished]
    duration: float
    steps: int = 1
    scheduled: dict[Sequence, int] = {}
    """Tokens computed per request, where the iteration was not folded."""
    metrics: tuple[ScheduledRequestMetrics, QueuedRequestMetrics] | None = None
    """Where they are asked for."""


class Load(Struct, frozen=True):
    running: int
    waiting: int
    kv_used_blocks: int
    kv_total_blocks: int
    active_decode_blocks: int
    active_prefill_tokens: int
    """Known but not computed yet; what the cache may spare a waiting request is not foreseen."""
    prefix_query_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    host_weight: float | None = None
    disk_weight: float | None = None
    tiers: list[TierReport] = []


class Scheduler:
    def __init__(self, args: MockerArgs, timing: Timing, *, record_events: bool = True) -> None:
        self.args = args
        self.tiers = MockTiers(args, timing) if args.num_g2_blocks else None
        self.pool = BlockPool(
            args.num_gpu_blocks, caching=args.enable_prefix_caching, record_events=record_events, tiers=self.tiers
        )
        self.waiting: deque[Sequence] = deque()
        self._arrived: deque[Sequence] = deque()
        """Too late for the next iteration, which is scheduled while the one before it runs."""
        self.running: list[Sequence] = []
        self._timing = timing
        self._block_size = args.block_size
        self._reserve = int(args.watermark * args.num_gpu_blocks)
        self._receives = args.disaggregation_mode == "decode"
        self._sequences: dict[int, Sequence] = {}
        self.measures_steps = False
        """Whether `step` says what was in it; a fold never does."""
        self._query_tokens = 0
        self._hit_tokens = 0
        self._preemptions = 0

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    def add(
        self,
        request_id: int,
        prompt: Collection[int],
        answer: MockAnswer,
        *,
        salt: int = BASE_SEED,
        session: SessionName | None = None,
    ) -> None:
        """Queue a request, or reject one that could never be computed."""
        if request_id in self._sequences:
            raise InvalidArgument(f"request {request_id} is already here")
        if not prompt:
            raise InvalidArgument("the prompt is empty")
        limit = self.args.context_limit
        if len(prompt) >= limit:
            raise InvalidArgument(
                f"a prompt of {len(prompt)} tokens does not fit: at most {limit - 1} leave room for an answer"
            )
        sequence = Sequence(request_id, prompt, answer, salt, session)
        if self.pool.caching:
            sequence.hash_up_to(len(prompt) // self._block_size, self._block_size)
        (self._arrived if self.args.async_scheduling and self._sequences else self.waiting).append(sequence)
        self._sequences[request_id] = sequence

    def cancel(self, request_id: int) -> bool:
        """Drop a request and free what it held; False if it is not here any more."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif self.tiers is not None and self.tiers.cancel(sequence):
            self.pool.release(sequence.blocks)
        else:
            (self._arrived if sequence in self._arrived else self.waiting).remove(sequence)
        return True

    def step(self, now: float = 0.0) -> StepResult:
        """One iteration. What it schedules is computed and answered by the time `duration` has passed."""
        self.pool.idle.now = now
        if self.tiers is not None:
            self._take_restored(self.tiers, now)
        if not self.running and not self.waiting:
            self._take_arrived()
        scheduled = self._schedule()
        self._take_arrived()
        if not self.measures_steps or not scheduled:
            return self._compute(scheduled)
        metrics = self._metrics(scheduled)
        result = self._compute(scheduled)
        result.metrics = metrics
        return result

    def _take_arrived(self) -> None:
        self.waiting += self._arrived
        self._arrived.clear()

    def quiet_steps(self, most: int = _FOLD_MOST) -> int:
        """How many of the next iterations can only be one decoded token for each running request.

        The last of them may finish requests; none admits, preempts or prefills.
        """
        running = self.running
        args = self.args
        if not running or len(running) > args.max_num_batched_tokens:
            return 0
        if self.waiting and len(running) < args.max_num_seqs:
            return 0
        if self.tiers is not None and self.tiers.restoring:
            return 0
        steps = 1 if self._arrived else most
        for sequence in running:
            if not sequence.decoding:
                return 0
            steps = sequence.left(steps)
        while steps and self._new_blocks(steps) > self.pool.free:
            steps //= 2
        return steps

    def decoding(self) -> tuple[int, int]:
        """Sequences of the next quiet iteration and the context they read; each iteration adds one token to each."""
        return len(self.running), sum([sequence.known for sequence in self.running])

    def fold(self, steps: int, duration: float, begins: Callable[[int], float] | None) -> StepResult:
        """Run `steps` quiet iterations at once, with the outcome of running them one by one.

        Tiers need to know when each of them `begins`.
        """
        size = self._block_size
        crossings = []
        for index, sequence in enumerate(self.running):
            computed = sequence.computed
            sequence.computed = computed + steps
            sequence.known += steps
            # A block is taken by the step that writes its first slot, and is full after the one that writes its last.
            first = -(-computed // size) * size
            for edge in range(first, computed + steps + 1, size):
                if edge < computed + steps:
                    crossings.append((edge - computed, index, 0, edge // size))
                if edge > computed:
                    crossings.append((edge - computed - 1, index, 1, edge // size))
        crossings.sort()
        for step, index, full, block in crossings:
            sequence = self.running[index]
            if self.tiers is not None and begins is not None:
                self.tiers.now = begins(step)
            if full:
                self._store(sequence, block - 1, block)
            else:
                sequence.blocks += self.pool.allocate(1)
        answered = list(self.running)
        done = [sequence for sequence in answered if not sequence.left(1)]
        return StepResult(answered, self._finish(done), duration, steps)

    def take_events(self) -> list[KvChange]:
        return self.pool.take_events()

    def take_tier_events(self) -> list[tuple[Tier, KvChange]]:
        return self.tiers.take_changes() if self.tiers is not None else []

    def clear_cache(self) -> bool:
        """Forget cached prefixes; rejected while requests hold blocks."""
        return self.pool.clear()

    def load(self) -> Load:
        decoding = [sequence for sequence in self.running if sequence.computed >= sequence.prefill_end]
        tiers, outside = self.tiers, self._outside()
        host_weight, disk_weight = tiers.weights() if tiers else (None, None)
        return Load(
            running=len(self.running),
            waiting=len(outside),
            kv_used_blocks=self.pool.used,
            kv_total_blocks=self.pool.total,
            active_decode_blocks=len({block for sequence in decoding for block in sequence.blocks}),
            active_prefill_tokens=sum([sequence.known for sequence in outside])
            + sum([max(0, sequence.prefill_end - sequence.computed) for sequence in self.running]),
            prefix_query_tokens=self._query_tokens,
            prefix_hit_tokens=self._hit_tokens,
            preemptions=self._preemptions,
            host_weight=host_weight,
            disk_weight=disk_weight,
            tiers=tiers.reports() if tiers else [],
        )

    def _outside(self) -> list[Sequence]:
        """The requests that do not run."""
        return [*self.waiting, *self._arrived, *(self.tiers.waiting() if self.tiers else ())]

    def _metrics(self, scheduled: dict[Sequence, int]) -> tuple[ScheduledRequestMetrics, QueuedRequestMetrics]:
        """What an iteration is about to compute, and what waits meanwhile."""
        prefilling = {sequence: tokens for sequence, tokens in scheduled.items() if self._prefills(sequence)}
        outside = self._outside()
        return (
            ScheduledRequestMetrics.of(
                [
                    ScheduledPrompt(sequence.prompt_tokens, tokens, sequence.computed)
                    for sequence, tokens in prefilling.items()
                ],
                [sequence.known for sequence in scheduled if sequence not in prefilling],
            ),
            QueuedRequestMetrics.of(
                [sequence.prompt_tokens for sequence in outside if sequence.known == sequence.prompt_tokens],
                [sequence.known for sequence in outside if sequence.known > sequence.prompt_tokens],
            ),
        )

    def _prefills(self, sequence: Sequence) -> bool:
        """What is left of a prompt that arrived computed takes a decode step, as it would have arrived whole too."""
        received = self._receives and sequence.computed > 0 and sequence.known - sequence.computed <= self._block_size
        return sequence.computed < sequence.prefill_end and not received

    def _new_blocks(self, steps: int) -> int:
        size = self._block_size
        return sum(-(-(sequence.computed + steps) // size) - len(sequence.blocks) for sequence in self.running)

    def _schedule(self) -> dict[Sequence, int]:
        """Tokens to compute per request, in order; their blocks are held from here on."""
        scheduled: dict[Sequence, int] = {}
        budget, preempted = self._schedule_running(scheduled)
        if not preempted:
            self._admit(scheduled, budget)
        return scheduled

    def _schedule_running(self, scheduled: dict[Sequence, int]) -> tuple[int, bool]:
        budget = self.args.max_num_batched_tokens
        oldest_first = self.args.preemption_mode == "fifo"
        running, pool, size = self.running, self.pool, self._block_size
        preempted = False
        index = 0
        while index < len(running) and budget > 0:
            sequence = running[index]
            if sequence.computed < sequence.quiet_until:
                scheduled[sequence] = 1
                budget -= 1
                index += 1
                continue
            count = min(sequence.known - sequence.computed, budget)
            target = sequence.computed + count
            missing = -(-target // size) - len(sequence.blocks)
            evicted = False
            while missing > pool.free and not evicted:
                victim = running.pop(0 if oldest_first else -1)
                self._preempt(victim)
                preempted = True
                evicted = victim is sequence
                if victim in scheduled:
                    budget += scheduled.pop(victim)
                    index -= 1
            if evicted:
                continue
            self._extend(sequence, missing, target)
            scheduled[sequence] = count
            budget -= count
            index += 1
        return budget, preempted

    def _admit(self, scheduled: dict[Sequence, int], budget: int) -> None:
        args, pool, size = self.args, self.pool, self._block_size
        while self.waiting and budget > 0 and len(self.running) < args.max_num_seqs:
            sequence = self.waiting[0]
            known = sequence.known
            # The last token is always computed: its output is what the next one is sampled from.
            hit = pool.lookup(sequence.hashes, (known - 1) // size)
            computed = len(hit) * size
            count = known - computed
            if count > budget:
                if not args.enable_chunked_prefill:
                    break
                count = budget
            target = computed + count
            missing = -(-target // size) - len(hit)
            # All its tokens must fit, not only the first chunk. If no request is running, no blocks are reserved.
            whole = -(-known // size) - len(hit)
            reserve = self._reserve if self.running else 0
            if whole + pool.idle_among(hit) + reserve > pool.free:
                break
            self.waiting.popleft()
            pool.hold(hit)
            if self.tiers is not None and not sequence.restored and self._restore(self.tiers, sequence, hit):
                continue
            self.running.append(sequence)
            sequence.blocks = hit
            sequence.computed = computed
            sequence.prefill_end = known
            if sequence.cached_tokens is None:
                sequence.cached_tokens = computed
                if pool.caching:
                    self._query_tokens += known
                    self._hit_tokens += computed
            self._extend(sequence, missing, target)
            scheduled[sequence] = count
            budget -= count

    def _restore(self, tiers: MockTiers, sequence: Sequence, hit: list[int]) -> bool:
        """Begin to restore what follows the blocks that were found; False if there is nothing."""
        keys = sequence.hashes[len(hit) : (sequence.known - 1) // self._block_size]
        taken = tiers.take(keys) if keys else []
        if not taken:
            return False
        sequence.blocks = hit + self.pool.allocate(len(taken))
        sequence.restored = True
        tiers.restore(sequence, taken)
        return True

    def _take_restored(self, tiers: MockTiers, now: float) -> None:
        """Put blocks that have come into the cache. Their requests are the next to be admitted, and find them there."""
        ready = tiers.begin_step(now)
        for restore in ready:
            sequence, end = restore.sequence, len(restore.sequence.blocks)
            self._store(sequence, end - restore.blocks, end)
            self.pool.release(sequence.blocks)
            sequence.blocks = []
        self.waiting.extendleft(restore.sequence for restore in reversed(ready))

    def _extend(self, sequence: Sequence, missing: int, target: int) -> None:
        """Blocks for the tokens up to `target`; those that become full can be found at once, as in vLLM."""
        if missing:
            sequence.blocks += self.pool.allocate(missing)
        full = target // self._block_size
        if full > sequence.computed // self._block_size:
            self._store(sequence, sequence.computed // self._block_size, full)

    def _store(self, sequence: Sequence, first: int, end: int) -> None:
        if not self.pool.caching:
            return
        sequence.hash_up_to(end, self._block_size)
        self.pool.store(
            sequence.blocks[first:end],
            sequence.hashes[first:end],
            sequence.hashes[first - 1] if first else None,
        )

    def _release(self, sequence: Sequence) -> None:
        """Its session may come back for them."""
        session = sequence.session
        if session:
            self.pool.release(sequence.blocks, session.digest, session.tenant)
        else:
            self.pool.release(sequence.blocks)

    def _preempt(self, victim: Sequence) -> None:
        self.pool.release(victim.blocks)
        victim.preempt()
        self.waiting.appendleft(victim)
        self._preemptions += 1

    def _compute(self, scheduled: dict[Sequence, int]) -> StepResult:
        prefilled = decoded = context = 0
        answered = []
        done = []
        for sequence, count in scheduled.items():
            if sequence.computed < sequence.quiet_until:
                sequence.computed += 1
                sequence.known += 1
                decoded += 1
                context += sequence.computed
                answered.append(sequence)
                continue
            prefilling = self._prefills(sequence)
            if prefilling:
                prefilled += count
            sequence.computed += count
            if sequence.computed == sequence.known:
                if not prefilling:
                    decoded += 1
                    context += sequence.computed
                sequence.known += 1
                answered.append(sequence)
                if sequence.left(1):
                    sequence.look_ahead(self._block_size)
                else:
                    done.append(sequence)
        duration = self._duration(prefilled, decoded, context)
        if self.tiers is not None:
            duration = self.tiers.end_step(duration, prefilled, decoded)
        return StepResult(answered, self._finish(done), duration, 1, scheduled)

    def _duration(self, prefilled: int, decoded: int, context: int) -> float:
        if prefilled and decoded:
            return self._timing.mixed(prefilled, decoded, context)
        return self._timing.prefill(prefilled) if prefilled else self._timing.decode(decoded, context)

    def _finish(self, done: list[Sequence]) -> list[Finished]:
        finished = []
        for sequence in done:
            self._release(sequence)
            del self._sequences[sequence.request_id]
            finished.append(
                Finished(
                    sequence.request_id,
                    sequence.answer.finish_reason,
                    sequence.answer.stop_reason,
                    sequence.prompt_tokens,
                    sequence.known - sequence.prompt_tokens,
                    sequence.cached_tokens or 0,
                )
            )
        if done:
            gone = set(done)
            self.running = [sequence for sequence in self.running if sequence not in gone]
        return finished
