"""The live mocker: keeps the simulated ranks in step with the event loop's clock."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from threading import Lock

from dynamo.engines.base import (
    EngineError,
    EngineInfo,
    KvListener,
    KvTierListener,
    LoadListener,
    RankLoad,
    StepListener,
)
from dynamo.engines.registry import EngineSpec
from dynamo.engines.request_options import reject_options
from dynamo.kv.hashing import salt_seed
from dynamo.kv.pauses import SessionPause
from dynamo.model import HubConfig, LocalModel, build_card, open_card
from dynamo.protocols.card import ModelCard, ModelInput, ModelType
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Usage
from dynamo.protocols.errors import EngineShutdown, InvalidArgument, from_exception
from dynamo.runtime.stream import Sink

from .args import MockerArgs
from .blocks import merge_removals
from .handoff import MockHandoffs
from .logprobs import LogprobSink
from .ranks import Iteration, RankEvents, Ranks, RankTierEvents
from .scheduler import Finished, Load
from .sequence import Sequence
from .timing import Timing
from .tokens import MockAnswer, MockVocabulary, answer_for, words_of

log = logging.getLogger(__name__)

_LACKS = ("use_beam_search", "best_of", "guided_decoding")

# Timers are no finer than this: what ends within it goes out at once, and the simulated clock runs ahead.
_SLACK = 1e-3
_ROUNDING = 1e-6
"""The same for a coarse mocker, which need not be punctual: only sums of times must not miss each other."""
_TURN = 1e-3
"""Other work on the event loop waits no longer than this plus one iteration."""
_LOAD_SECONDS = 0.1
"""Load is reported when it may have changed, but not more often than this."""


class MockerRunning:
    """A request the mocker is answering."""

    __slots__ = ("_engine", "_request_id")

    def __init__(self, engine: MockerEngine, request_id: int) -> None:
        self._engine = engine
        self._request_id = request_id

    def abort(self) -> None:
        """Free what the request held and end its stream as cancelled, unless it has ended."""
        self._engine.abort(self._request_id)


class MockerEngine(MockHandoffs):
    """Answers requests at the pace of the model it imitates.

    An iteration is computed when it starts and delivered to the sinks when it would have ended; iterations that are due
    together are delivered together.
    """

    model_input = ModelInput.Tokens

    def __init__(
        self,
        args: MockerArgs,
        *,
        vocabulary: MockVocabulary | Callable[[], MockVocabulary] | None = None,
        timing: Timing | None = None,
        coarse: bool = False,
    ) -> None:
        """A `coarse` mocker hands over the tokens of a run of decode steps together, at the end of the run.

        Everything still happens at the same time as in a fine one, and its tokens are the same.
        """
        super().__init__(args, Ranks(args, timing=timing, record_events=False))
        self._coarse = coarse
        self._slack = _ROUNDING if coarse else _SLACK
        self._resume_at: float | None = None
        """The end of the run of decode steps that a coarse mocker waits for."""
        self._vocabulary = vocabulary if isinstance(vocabulary, MockVocabulary) else MockVocabulary()
        self._load_vocabulary = vocabulary if callable(vocabulary) else None
        self._on_kv_events: KvListener | None = None
        self._on_kv_tier_events: KvTierListener | None = None
        self._ids = count()
        self._sinks: dict[int, Sink] = {}
        self._clock = 0.0
        self.busy_seconds = 0.0
        """Spent computing so far, by the clock of the imitated engine."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._awake = False
        self._computed: Iteration | None = None
        self._on_load: LoadListener | None = None
        self._on_steps: StepListener | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._load_reported_at = 0.0

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> MockerEngine:
        """The card follows the flags."""
        model = spec.model_config or spec.model
        if model is None:
            raise EngineError("out=mocker needs a model, for its tokenizer")
        try:
            args = MockerArgs.from_spec(spec)
            card, vocabulary = _described(model, args.max_model_len)
            return cls(args.within(card), vocabulary=vocabulary)
        except InvalidArgument as error:
            raise EngineError(f"out=mocker: {error.message}") from error

    async def start(self) -> EngineInfo:
        """Ready after `startup_time`; says what a router should know."""
        if self._load_vocabulary:
            self._vocabulary = await asyncio.to_thread(self._load_vocabulary)
        if self.args.startup_time:
            log.info("ready in %g s", self.args.startup_time)
            await asyncio.sleep(self.args.startup_time)
        self._loop = asyncio.get_running_loop()
        return EngineInfo(
            context_length=self.args.max_model_len,
            kv_cache_block_size=self.args.block_size,
            total_kv_blocks=self.args.num_gpu_blocks,
            max_num_seqs=self.args.max_num_seqs,
            max_num_batched_tokens=self.args.max_num_batched_tokens,
            data_parallel_size=self.args.dp_size,
            worker_type=self.args.worker_type,
        )

    def on_kv_events(self, listener: KvListener) -> None:
        """Report the blocks of every rank, before the tokens of the same iteration go out."""
        self._on_kv_events = listener
        self.ranks.record_events()

    def on_kv_tier_events(self, listener: KvTierListener) -> None:
        self._on_kv_tier_events = listener
        self.ranks.record_tier_events()

    def on_load(self, listener: LoadListener) -> None:
        self._on_load = listener
        self._report_load_soon()

    def on_steps(self, listener: StepListener) -> None:
        """Report every iteration, for which none is folded, with the time of the imitated engine."""
        self._on_steps = listener
        self.ranks.measure_steps()

    async def close(self) -> None:
        """Fail what is still running; nothing is accepted afterwards."""
        self._loop = None
        if self._load_timer is not None:
            self._load_timer.cancel()
            self._load_timer = None
        self._rest()
        self._fail_all(EngineShutdown("mocker is shutting down"))

    def generate(self, request: PreprocessedRequest, sink: Sink) -> MockerRunning:
        """Start answering; a request that cannot be answered fails its sink at once."""
        request_id = next(self._ids)
        running = MockerRunning(self, request_id)
        if self._loop is None:
            sink.fail(EngineShutdown("mocker is not running"))
            return running
        if self._resume_at is not None:
            self._catch_up()
        try:
            answer = self._queue(request_id, request)
        except InvalidArgument as error:
            sink.fail(error)
            return running
        options = request.output_options
        if options.logprobs is not None or options.prompt_logprobs is not None:
            sink = LogprobSink(sink, options, request.token_ids, answer.words)
        self._sinks[request_id] = sink
        if not self._awake:
            self._awake = True
            self._clock = self._loop.time()
            self._timer = self._loop.call_soon(self._tick)
        return running

    def quiet(self) -> bool:
        return not self._sinks

    def abort(self, request_id: int) -> None:
        if self._resume_at is not None:
            self._catch_up()
        sink = self._sinks.pop(request_id, None)
        self.ranks.cancel(request_id)
        self._report_load_soon()
        if sink is not None:
            sink.item(EngineOutput(finish_reason="cancelled"))
            sink.end()

    def load(self) -> list[Load]:
        """One figure per data parallel rank."""
        return self.ranks.load()

    def session_paused(self, pause: SessionPause) -> None:
        self.ranks.paused(pause)

    async def clear_cache(self) -> bool:
        """Forget cached prefixes; rejected while requests run."""
        cleared = self.ranks.clear_cache()
        if cleared:
            self._report_events_now()
        return cleared

    def _queue(self, request_id: int, request: PreprocessedRequest) -> MockAnswer:
        reject_options("mocker", request, *_LACKS)
        routing = request.routing
        try:
            prompt = array("I", request.token_ids)
        except (OverflowError, TypeError):
            raise InvalidArgument("token ids must be integers from 0 to 4294967295") from None
        args = self.args
        first = 1 if args.disaggregation_mode == "prefill" else None
        answer = answer_for(request, self._vocabulary, args.context_limit, args.reasoning, first=first)
        if routing is None:
            self.ranks.add(request_id, prompt, answer)
            return answer
        salt = salt_seed(routing.lora_name, routing.cache_salt)
        self.ranks.add(request_id, prompt, answer, dp_rank=routing.dp_rank, salt=salt, session=routing.session)
        return answer

    def _tick(self, *, ahead: bool = True) -> None:
        """Deliver what is due, and come back when more is. Only `ahead` may a coarse mocker wait for a whole run."""
        self._report_load_soon()
        try:
            self._deliver(*self._iterate(ahead))
        except Exception as error:
            log.exception("mocker failed; ending every request it was answering")
            self._rest()
            self._fail_all(error)
            return
        if self._loop is None:
            return
        if self._computed is not None:
            # Timers fire a millisecond late on average: set slightly early, they are less late.
            self._timer = self._loop.call_at(self._computed.ends - self._slack / 2, self._tick)
        elif self._resume_at is not None:
            self._timer = self._loop.call_at(self._resume_at, self._tick)
        elif self.ranks.busy:
            self._timer = self._loop.call_soon(self._tick)
        else:
            self._rest()

    def _catch_up(self) -> None:
        """Make up for the steps of a run that have ended, and for the one under way, before something changes."""
        assert self._timer is not None
        self._timer.cancel()
        self._tick(ahead=False)

    def _iterate(self, ahead: bool) -> tuple[dict[Sequence, int], list[Finished]]:
        """The new tokens and finished requests of all iterations that are due, as far as one turn of the loop allows.

        Their KV events are reported here. An iteration that is computed but not due yet waits in `_computed`.
        """
        assert self._loop is not None
        due, enough = self._loop.time() + self._slack, time.monotonic() + _TURN
        answered: dict[Sequence, int] = {}
        finished: list[Finished] = []
        self._resume_at = None
        while True:
            if ahead and self._coarse and self._computed is None:
                ends = self.ranks.run_ends(self._clock)
                if ends is not None and ends > due:
                    self._resume_at = ends
                    break
            iteration = self._computed or self.ranks.step(self._clock, due if self._on_steps is None else None)
            if iteration is not self._computed:
                self.busy_seconds += iteration.ends - self._clock
                if self._on_steps is not None:
                    for rank, scheduled, queued in iteration.metrics:
                        self._on_steps(rank, iteration.ends - self._clock, scheduled, queued)
            self._clock = iteration.ends
            if iteration.ends > due:
                self._computed = iteration
                break
            self._computed = None
            self._report_events(iteration.events, iteration.tier_events)
            for sequence in iteration.answered:
                answered[sequence] = answered.get(sequence, 0) + iteration.steps
            finished += iteration.finished
            if not self.ranks.busy or (time.monotonic() > enough and not self._coarse):
                break
        return answered, finished

    def _deliver(self, answered: dict[Sequence, int], finished: list[Finished]) -> None:
        sinks = self._sinks
        done = {one.request_id: one for one in finished}
        for sequence, new in answered.items():
            request_id = sequence.request_id
            sink = sinks.get(request_id)
            if sink is None:
                continue
            ids = sequence.take(new)
            try:
                if request_id in done:
                    del sinks[request_id]
                    sink.item(self._last(ids, done[request_id]))
                    sink.end()
                else:
                    sink.tokens(ids)
            except Exception:
                log.exception("a sink refused its tokens; dropping its request")
                sinks.pop(request_id, None)
                self.ranks.cancel(request_id)

    def _last(self, ids: list[int], finished: Finished) -> EngineOutput:
        usage = Usage(
            prompt_tokens=finished.prompt_tokens,
            completion_tokens=finished.completion_tokens,
            total_tokens=finished.prompt_tokens + finished.completion_tokens,
            prompt_tokens_details={"cached_tokens": finished.cached_tokens},
        )
        return EngineOutput(
            token_ids=ids,
            finish_reason=finished.finish_reason,
            stop_reason=finished.stop_reason,
            completion_usage=usage,
        )

    def _report_events_now(self) -> None:
        """Those of the iteration that is computed but not due come first: what it stored was stored before."""
        if (computed := self._computed) is not None:
            self._report_events(computed.events, computed.tier_events)
            computed.events, computed.tier_events = [], []
        self._report_events(self.ranks.take_events(), self.ranks.take_tier_events())

    def _report_events(self, events: RankEvents, tier_events: RankTierEvents) -> None:
        """A block that moves to a slower tier is reported there before it is gone from the device."""
        if self._on_kv_tier_events is not None:
            for rank, changes_below in tier_events:
                for tier, change in changes_below:
                    self._on_kv_tier_events(rank, tier, change)
        if self._on_kv_events is not None:
            for rank, changes in events:
                self._on_kv_events(rank, merge_removals(changes))

    def _report_load_soon(self) -> None:
        if self._on_load is not None and self._load_timer is None and self._loop is not None:
            due = max(self._loop.time(), self._load_reported_at + _LOAD_SECONDS)
            self._load_timer = self._loop.call_at(due, self._report_load)

    def _report_load(self) -> None:
        self._load_timer = None
        if self._on_load is None or self._loop is None:
            return
        self._load_reported_at = self._loop.time()
        for rank, load in enumerate(self.ranks.load()):
            self._on_load(
                RankLoad(
                    dp_rank=rank,
                    active_decode_blocks=load.active_decode_blocks,
                    active_prefill_tokens=load.active_prefill_tokens,
                    kv_used_blocks=load.kv_used_blocks,
                    kv_total_blocks=load.kv_total_blocks,
                    host_weight=load.host_weight,
                    disk_weight=load.disk_weight,
                    tiers=load.tiers,
                )
            )

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._awake = False
        self._computed = None
        self._resume_at = None

    def _fail_all(self, error: Exception) -> None:
        sinks = list(self._sinks.items())
        self._sinks.clear()
        for request_id, sink in sinks:
            self.ranks.cancel(request_id)
            sink.fail(from_exception(error))


@lru_cache(maxsize=1)
def _described(model: LocalModel, context_length: int | None) -> tuple[ModelCard, Callable[[], MockVocabulary]]:
    """Its card and, read when first called, its words: the same for all workers of a process."""
    card = build_card(model, name="mocker", model_type=ModelType.Backend, context_length=context_length)
    lock, read = Lock(), cache(lambda: words_of(open_card(card, HubConfig(cache=Path(), offline=True))))

    def words() -> MockVocabulary:
        with lock:
            return read()

    return card, words
