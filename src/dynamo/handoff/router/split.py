"""Splits requests of one model: has a prefill worker compute the prompt, and the decode worker continue from there.

Two hand-offs. Most engines wait for prefill: its answer says where the decode worker finds the computed prompt. With
bootstrap both workers get the request at once and meet at an address of the prefill worker.

The stream from the prefill worker stays open until the decode worker has produced a token: it is the lease of what the
prefill worker holds. Ending it, also by the loss of the connection, gives the offer back. Whatever goes wrong, the
decode worker computes the prompt itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from msgspec import structs

from dynamo.handoff.router.costs import HandoffCosts
from dynamo.handoff.router.recent import Handoff, HandoffStage, RecentHandoffs
from dynamo.handoff.router.rule import SplitVerdict, SplitView, decide
from dynamo.protocols.engine import BootstrapInfo, EngineOutput, PrefillResult, PreprocessedRequest, Routing, Usage
from dynamo.protocols.errors import (
    ConnectionTimeout,
    DynamoException,
    ResourceExhausted,
    StreamIncomplete,
    Unavailable,
)
from dynamo.router.placement import Placement
from dynamo.runtime import Context
from dynamo.runtime.metrics.instruments import Histogram, log_buckets
from dynamo.settings.router import SplitConfig

if TYPE_CHECKING:
    from dynamo.handoff.router.pool import PrefillPool  # which imports the router, which imports this

log = logging.getLogger(__name__)

ATTEMPTS = 2
"""A prompt whose prefill worker fails is sent to one other; then the decode worker computes it."""
LATE = 10.0
"""A prefill worker that takes this many times the expected time is given up."""
LEAST_SECONDS = 5.0
UNKNOWN_SECONDS = 60.0
"""The limit before anything was measured."""
MAX_ROOM = (1 << 63) - 1
_LATENCY_BOUNDS = log_buckets(0.001, 100.0, 16)


class SplitStats:
    """Counters of one model, which the metrics read."""

    def __init__(self) -> None:
        self.decisions: Counter[tuple[bool, str]] = Counter()
        """By whether the prompt was to be computed by a prefill worker, and why."""
        self.transfer = Histogram(_LATENCY_BOUNDS)
        """Expected seconds of transfer and hop of the requests that were split."""


class Splitter:
    """Of one model, for as long as it is served."""

    def __init__(self, pool: PrefillPool, config: SplitConfig, clock: Callable[[], float] = monotonic) -> None:
        self.pool = pool
        self.config = config
        self.costs = HandoffCosts()
        self.stats = SplitStats()
        self.recent = RecentHandoffs()
        self.measuring: Split | None = None
        """The request that is split to measure the costs."""
        self.clock = clock

    def begin(self) -> Split | None:
        """For one request; None where every worker computes the prompts of its own requests."""
        return Split(self) if self.pool.serves else None


class Split:
    """The hand-off of one request, from attempt to attempt of its delivery."""

    def __init__(self, splitter: Splitter) -> None:
        self._of = splitter
        self._prefill: Prefill | None = None
        self._answered_at: float | None = None
        self._prompt_tokens = 0
        self._ahead = 0
        """Prompt tokens that the decode worker had to compute when the prefill worker answered."""
        self._sent = 0
        """Prompt tokens that it had been sent until then."""
        self._decode_id = 0
        self._batch_tokens = 0
        self._cached_before: int | None = None
        """Tokens of the prompt that the prefill worker had cached."""
        self._failure = "failed"
        self._local: tuple[int, int] | None = None
        """The decode worker and the tokens that it computes itself."""
        self._handoff: Handoff | None = None
        """What is shown of the present attempt."""

    async def prefilled(
        self, request: PreprocessedRequest, placement: Placement, context: Context
    ) -> PreprocessedRequest:
        """The request to send to the placement's worker, once its prompt is computed if it is to be elsewhere.

        Raises nothing but CancelledError.
        """
        pool, now = self._of.pool, self._of.clock()
        self._cached_before = None
        if not pool.receives(placement.instance_id):
            return request
        partners = pool.partners_of(placement.instance_id)
        view = self._view(request, placement, partners)
        self._of.costs.mix.add(view.prompt_tokens, view.prompt_tokens - view.cached_tokens)
        verdict = decide(view, self._of.costs, self._of.config, now)
        if verdict.remote:
            # The decode worker does not compute the prompt: its load there is only what it holds.
            placement.first_token()
            if verdict.reason == "measuring" and self._of.measuring is None:
                self._of.measuring = self
            continued = await self._elsewhere(request, placement.instance_id, verdict, context)
            if continued is not None:
                if verdict.handoff_seconds is not None:
                    self._of.stats.transfer.observe(verdict.handoff_seconds)
                self._note(placement, verdict, context)
                return continued
            verdict = structs.replace(verdict, remote=False, reason=self._failure)
        self._note(placement, verdict, context)
        self._show(request, placement.instance_id, verdict, context)
        self._local = placement.instance_id, verdict.uncached_tokens
        pool.add_waiting(*self._local)
        return request

    def computed(self) -> None:
        """The decode worker has produced a token: what was offered was taken, or will not be."""
        if self._answered_at is not None:
            now = self._of.clock()
            self._of.costs.handed_over(self._prompt_tokens, now - self._answered_at, self._others_before(), now)
            if self._handoff is not None:
                self._handoff.handoff_seconds = now - self._answered_at
        if self._handoff is not None and self._handoff.split:
            self._handoff.stage = HandoffStage.DONE
        self.end()

    def correct_usage(self, usage: Usage) -> None:
        """What a prefill worker computed for this request was not cached, though the decode worker may say so."""
        cached = cached_tokens(usage.prompt_tokens_details)
        if self._cached_before is not None and cached is not None:
            least = min(cached, self._cached_before)
            usage.prompt_tokens_details = {**(usage.prompt_tokens_details or {}), "cached_tokens": least}

    def end(self) -> None:
        """The attempt is over: give back what was not taken. Further calls do nothing."""
        self._answered_at = None
        handoff, self._handoff = self._handoff, None
        if handoff is not None and handoff.stage in (HandoffStage.PREFILL, HandoffStage.TRANSFER):
            handoff.stage = HandoffStage.GIVEN_BACK
        if self._of.measuring is self:
            self._of.measuring = None
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.close()
        local, self._local = self._local, None
        if local is not None:
            self._of.pool.add_waiting(local[0], -local[1])

    def _others_before(self) -> int:
        """Prompt tokens that the decode worker may have computed between the prefill worker's answer and now."""
        later = self._of.pool.sent(self._decode_id) - self._sent
        # Later prompts of two passes may have gone before: of the one under way when the transfer ended, and of the
        # next one, which engines schedule meanwhile.
        return self._ahead + max(0, min(later, 2 * self._batch_tokens))

    def _view(self, request: PreprocessedRequest, placement: Placement, partners: list[int]) -> SplitView:
        pool, prompt = self._of.pool, len(request.token_ids)
        choice = placement.decision.choice if placement.decision else None
        pinned = request.routing.prefill_worker_id if request.routing else None
        waiting = min((pool.waiting(id) for id in partners), default=0)
        card = pool.card_of(partners[0]) if partners else None
        return SplitView(
            prompt_tokens=prompt,
            cached_tokens=prompt - choice.prefill_tokens if choice else 0,
            prefill_waiting=waiting,
            decode_waiting=pool.waiting(placement.instance_id),
            batch_tokens=pool.batch_tokens(partners[0]) if partners else 8192,
            block_size=card.kv_cache_block_size if card else 1,
            partners=len(partners) if pinned is None else int(pinned in partners),
            pinned=pinned is not None,
            needed=not pool.computes_prompts(placement.instance_id),
            measuring=self._of.measuring is not None,
        )

    async def _elsewhere(
        self, request: PreprocessedRequest, decode_id: int, verdict: SplitVerdict, context: Context
    ) -> PreprocessedRequest | None:
        """The request that continues after a prefill; None if none succeeded."""
        pinned = request.routing.prefill_worker_id if request.routing else None
        tried: set[int] = set()
        asked = prefill_request(request)
        while len(tried) < ATTEMPTS and not context.is_stopped():
            allowed = set(self._of.pool.partners_of(decode_id)) - tried
            if not allowed:
                break
            try:
                placement = await self._of.pool.place(asked, allowed, request_id=context.id(), pinned=pinned)
                tried.add(placement.instance_id)
                self._prefill = Prefill(self._of, placement, verdict.uncached_tokens)
                self._show(request, decode_id, verdict, context, placement.instance_id)
                return await self._continue_from(self._prefill, decode_id, request, asked, context)
            except DynamoException as error:
                if isinstance(error, ResourceExhausted):
                    self._failure = "busy"
                elif not context.is_stopped():
                    log.warning("request %s: no prefill: %s", context.id(), error)
                if error.migratable and self._prefill is not None:
                    self._of.pool.instances.inhibit(self._prefill.placement.instance_id)
                self.end()
                if not error.migratable:
                    break
        return None

    async def _continue_from(
        self,
        prefill: Prefill,
        decode_id: int,
        request: PreprocessedRequest,
        asked: PreprocessedRequest,
        context: Context,
    ) -> PreprocessedRequest:
        worker = prefill.placement.instance_id
        routing = structs.replace(request.routing or Routing(), prefill_worker_id=worker)
        info = bootstrap_info(self._of.pool, prefill.placement, context.id())
        if info is not None:
            # Not learned from: the transfer begins before the prefill has ended.
            await prefill.send(structs.replace(asked, bootstrap_info=info), context)
            if self._handoff is not None:
                self._handoff.stage = HandoffStage.TRANSFER
            return structs.replace(request, bootstrap_info=info, routing=routing)
        await prefill.send(asked, context)
        result = await prefill.answered()
        self._answered_at, self._prompt_tokens = self._of.clock(), len(request.token_ids)
        self._cached_before = cached_tokens(result.prompt_tokens_details)
        if self._handoff is not None:
            self._handoff.stage, self._handoff.prefill_seconds = HandoffStage.TRANSFER, prefill.seconds
        pool = self._of.pool
        self._decode_id, self._ahead, self._sent = decode_id, pool.waiting(decode_id), pool.sent(decode_id)
        self._batch_tokens = pool.batch_tokens(worker)
        return structs.replace(request, prefill_result=result, routing=routing)

    def _show(
        self,
        request: PreprocessedRequest,
        decode_id: int,
        verdict: SplitVerdict,
        context: Context,
        prefill_id: int | None = None,
    ) -> None:
        self._handoff = Handoff(
            time=time(),
            request_id=context.id(),
            decode_id=decode_id,
            prompt_tokens=len(request.token_ids),
            uncached_tokens=verdict.uncached_tokens,
            reason=verdict.reason,
            stage=HandoffStage.LOCAL if prefill_id is None else HandoffStage.PREFILL,
            prefill_id=prefill_id,
        )
        self._of.recent.append(self._handoff)

    def _note(self, placement: Placement, verdict: SplitVerdict, context: Context) -> None:
        """The reason, for the counter, the log and the routing notes of the answer."""
        self._of.stats.decisions[verdict.remote, verdict.reason] += 1
        worker = self._prefill.placement.instance_id if self._prefill else None
        if placement.decision is not None:
            placement.decision.split = verdict
            placement.decision.prefill_worker_id = worker
        if log.isEnabledFor(logging.DEBUG):
            where = f"worker {worker:x}" if worker is not None else "the decode worker"
            log.debug("request %s: %s computes the prompt (%s)", context.id(), where, verdict.reason)


class Prefill:
    """One attempt to have a prompt computed: the sink of the prefill worker's stream."""

    def __init__(self, splitter: Splitter, placement: Placement, tokens: int) -> None:
        self.placement = placement
        self.answer: asyncio.Future[PrefillResult] = asyncio.get_running_loop().create_future()
        self._of = splitter
        self._tokens = tokens
        self._waiting = True
        self._alone = not splitter.pool.waiting(placement.instance_id)
        self._context: Context | None = None
        self._forget: Callable[[], None] = lambda: None
        self._began = splitter.clock()
        splitter.pool.add_waiting(placement.instance_id, tokens)

    async def send(self, request: PreprocessedRequest, context: Context) -> None:
        """Raises DynamoException if the worker cannot be reached."""
        await self.placement.connect()
        self._context = context.detached(context.id())
        self._forget = context.on_stop(lambda _: self.close())
        routing = structs.replace(
            request.routing or Routing(), dp_rank=self.placement.dp_rank, backend_instance_id=None
        )
        self._began = self._of.clock()
        self.placement.channel.send(
            structs.replace(request, routing=routing), self._context, self, item_type=EngineOutput, columnar=True
        )

    @property
    def seconds(self) -> float:
        """Since the prompt was sent."""
        return self._of.clock() - self._began

    async def answered(self) -> PrefillResult:
        """Raises DynamoException if the worker fails, or takes much longer than is known of others."""
        pool, worker = self._of.pool, self.placement.instance_id
        expected = self._of.costs.prefill.seconds(pool.waiting(worker))
        limit = UNKNOWN_SECONDS if expected is None else max(LEAST_SECONDS, LATE * expected)
        try:
            async with asyncio.timeout(limit):
                return await self.answer
        except TimeoutError:
            raise ConnectionTimeout(f"prefill worker {worker:x} has not answered in {limit:.1f} s") from None

    def close(self) -> None:
        """End the stream: the worker stops computing, or takes back what it still offers."""
        self._forget()
        self._release()
        if self._context is not None:
            self._context.kill()
        self.fail(Unavailable("the request was given up"))

    def tokens(self, ids: list[int]) -> None: ...

    def item(self, value: Any) -> None:
        if not isinstance(value, EngineOutput) or (value.finish_reason is None and value.disaggregated_params is None):
            return
        self._release()
        if self.answer.done():
            return
        if value.disaggregated_params is None:
            self.fail(Unavailable(f"the prefill worker offered nothing ({value.finish_reason})"))
            return
        usage = value.completion_usage
        details = usage.prompt_tokens_details if usage else None
        cached = cached_tokens(details)
        if self._alone:
            now = self._of.clock()
            tokens = self._tokens if cached is None or not usage else usage.prompt_tokens - cached
            self._of.costs.prefill.add(max(0, tokens), now - self._began, now)
        self.answer.set_result(
            PrefillResult(disaggregated_params=value.disaggregated_params, prompt_tokens_details=details)
        )

    def end(self) -> None:
        self.fail(StreamIncomplete("the prefill worker ended without an answer"))

    def fail(self, error: DynamoException) -> None:
        self._release()
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # marks it as retrieved: with bootstrap there is no reader

    def _release(self) -> None:
        self.placement.first_token()
        self.placement.release()
        if self._waiting:
            self._waiting = False
            self._of.pool.add_waiting(self.placement.instance_id, -self._tokens)


def cached_tokens(details: Mapping[str, Any] | None) -> int | None:
    """Of an engine's `prompt_tokens_details`; None where they do not say it."""
    found = (details or {}).get("cached_tokens")
    return found if isinstance(found, int) else None


def prefill_request(request: PreprocessedRequest) -> PreprocessedRequest:
    """The same prompt, of which only the computed state is wanted: one token, of any kind."""
    return structs.replace(
        request,
        stop_conditions=structs.replace(request.stop_conditions, max_tokens=1, min_tokens=1, stop=None),
        sampling_options=structs.replace(request.sampling_options, guided_decoding=None, n=None),
        output_options=structs.replace(request.output_options, logprobs=None, prompt_logprobs=None),
    )


def bootstrap_info(pool: PrefillPool, placement: Placement, request_id: str) -> BootstrapInfo | None:
    """Where both workers meet, if the prefill worker's card names such a place; a room belongs to the chosen rank."""
    runtime = pool.runtime_of(placement.instance_id)
    if not runtime.bootstrap_host or not runtime.bootstrap_port:
        return None
    ranks = max(1, runtime.data_parallel_size)
    room = secrets.randbelow(MAX_ROOM // ranks) * ranks + (placement.dp_rank or 0) % ranks
    return BootstrapInfo(
        bootstrap_host=runtime.bootstrap_host,
        bootstrap_port=runtime.bootstrap_port,
        bootstrap_room=room,
        handoff_id=request_id,
    )
