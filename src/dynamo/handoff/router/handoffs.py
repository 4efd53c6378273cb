"""Hands requests of one model over: has a prefill worker compute the prompt, and the decode worker continue from there.

Two ways. Most engines wait for prefill: its answer says where the decode worker finds the computed prompt. With
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
from collections.abc import Callable
from functools import partial
from time import monotonic, time
from typing import Any

from msgspec import Struct, structs

from dynamo.handoff.router.costs import HandoffCosts
from dynamo.handoff.router.pool import PrefillPool
from dynamo.handoff.router.recent import HandoffStage, HandoffView, RecentHandoffs
from dynamo.handoff.router.rule import HandoffCase, HandoffVerdict, decide
from dynamo.protocols.engine import BootstrapInfo, EngineOutput, PrefillResult, PreprocessedRequest, Routing, Usage
from dynamo.protocols.errors import ConnectionTimeout, DynamoException, ResourceExhausted, Unavailable
from dynamo.router.config import RequestBackoff
from dynamo.router.delivery.continuation import cached_tokens
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions
from dynamo.router.placement import Placement
from dynamo.runtime import Context
from dynamo.runtime.metrics import Histogram, log_buckets
from dynamo.runtime.stream import FirstAnswer
from dynamo.settings.router import HandoffConfig

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


class HandoffStats:
    """Counters of one model, which the metrics read."""

    def __init__(self) -> None:
        self.decisions: Counter[tuple[bool, str]] = Counter()
        """By whether the prompt was to be computed by a prefill worker, and why."""
        self.transfer = Histogram(_LATENCY_BOUNDS)
        """Expected seconds of transfer and hop of the requests that were handed over."""


class Handoffs:
    """The hand-offs of one model, for as long as it is served."""

    def __init__(self, pool: PrefillPool, config: HandoffConfig, clock: Callable[[], float] = monotonic) -> None:
        self.pool = pool
        self.config = config
        self.costs = HandoffCosts()
        self.stats = HandoffStats()
        self.recent = RecentHandoffs()
        self.measuring: Handoff | None = None
        """The request that is handed over to measure the costs."""
        self.clock = clock

    def begin(self) -> Handoff | None:
        """Begin the hand-off of one request; None where every worker computes the prompts of its own requests."""
        return Handoff(self) if self.pool.serves else None


class StateTransfer(Struct, kw_only=True):
    """The transfer of one state: from the prefill worker's answer to the decode worker's first token."""

    began: float
    prompt_tokens: int
    decode_id: int
    ahead: int
    """Prompt tokens that the decode worker had to compute when it began."""
    sent: int
    """Prompt tokens that it had been sent until then."""
    batch_tokens: int

    def others_before(self, pool: PrefillPool) -> int:
        """Prompt tokens that the decode worker may have computed between its begin and now."""
        later = pool.sent(self.decode_id) - self.sent
        # Later prompts of two passes may have gone before: of the one under way when the transfer ended, and of the
        # next one, which engines schedule meanwhile.
        return self.ahead + max(0, min(later, 2 * self.batch_tokens))


class Handoff:
    """The companion of one request's delivery to decode workers, from attempt to attempt."""

    def __init__(self, handoffs: Handoffs) -> None:
        self._of = handoffs
        self._prefill: Prefill | None = None
        self._transfer: StateTransfer | None = None
        self.cached_before: int | None = None
        self._local: tuple[int, int] | None = None
        """The decode worker and the tokens that it computes itself."""
        self._shown: HandoffView | None = None
        """What the fleet view shows of the present attempt."""

    async def prepare(
        self, request: PreprocessedRequest, placement: Placement, context: Context
    ) -> PreprocessedRequest:
        """Return the request for the placement's worker, once another one has computed its prompt where that is due."""
        pool, costs, decode_id = self._of.pool, self._of.costs, placement.instance_id
        self.cached_before = None
        case = self._case(request, placement)
        if case is None:
            return request
        verdict = decide(case, costs, self._of.config, self._of.clock())
        if verdict.remote:
            # The decode worker does not compute the prompt: its load there is only what it holds.
            placement.first_token()
            if verdict.reason == "measuring" and self._of.measuring is None:
                self._of.measuring = self
            show = partial(self._show, request, decode_id, verdict, context)
            prefill = self._prefill = Prefill(self._of, verdict.uncached_tokens, context, show)
            delivery = prefill.delivery(request, decode_id)
            try:
                await delivery.start()
                await prefill.answered(delivery)
                return self._handed_over(request, placement, prefill, verdict, context)
            except DynamoException as error:
                verdict = structs.replace(verdict, remote=False, reason=self._failed(error, context))
        self._note(placement, verdict, context)
        self._show(request, decode_id, verdict, context)
        self._local = decode_id, verdict.uncached_tokens
        pool.add_waiting(*self._local)
        return request

    def computed(self) -> None:
        """The decode worker has produced a token: what was offered was taken, or will not be."""
        shown, transfer = self._shown, self._transfer
        if transfer is not None:
            now = self._of.clock()
            others = transfer.others_before(self._of.pool)
            self._of.costs.handed_over(transfer.prompt_tokens, now - transfer.began, others, now)
            if shown is not None:
                shown.handoff_seconds = now - transfer.began
        if shown is not None and shown.stage is not HandoffStage.LOCAL:
            shown.stage = HandoffStage.DONE
        self.release()

    def release(self) -> None:
        """End the attempt and give back what was not taken. Further calls do nothing."""
        self._transfer = None
        shown, self._shown = self._shown, None
        if shown is not None and shown.stage in (HandoffStage.PREFILL, HandoffStage.TRANSFER):
            shown.stage = HandoffStage.GIVEN_BACK
        if self._of.measuring is self:
            self._of.measuring = None
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.close()
        local, self._local = self._local, None
        if local is not None:
            self._of.pool.add_waiting(local[0], -local[1])

    def _case(self, request: PreprocessedRequest, placement: Placement) -> HandoffCase | None:
        """None if the worker is no decode worker."""
        pool, prompt = self._of.pool, len(request.token_ids)
        if not pool.receives(placement.instance_id):
            return None
        partners = pool.partners_of(placement.instance_id)
        choice = placement.decision.choice if placement.decision else None
        pinned = request.routing.prefill_worker_id if request.routing else None
        waiting = min((pool.waiting(id) for id in partners), default=0)
        card = pool.card_of(partners[0]) if partners else None
        cached = prompt - choice.prefill_tokens if choice else 0
        self._of.costs.mix.add(prompt, prompt - cached)
        return HandoffCase(
            prompt_tokens=prompt,
            cached_tokens=cached,
            prefill_waiting=waiting,
            decode_waiting=pool.waiting(placement.instance_id),
            batch_tokens=pool.batch_tokens(partners[0]) if partners else 8192,
            block_size=card.kv_cache_block_size if card else 1,
            partners=len(partners) if pinned is None else int(pinned in partners),
            pinned=pinned is not None,
            needed=not pool.computes_prompts(placement.instance_id),
            measuring=self._of.measuring is not None,
        )

    def _handed_over(
        self, request: PreprocessedRequest, placement: Placement, prefill: Prefill, verdict: HandoffVerdict,
        context: Context,
    ) -> PreprocessedRequest:  # fmt: skip
        """The request with which the decode worker continues after this prefill."""
        if self._shown is not None:
            self._shown.stage = HandoffStage.TRANSFER
            self._shown.prefill_seconds = None if prefill.meeting else prefill.seconds
        if verdict.handoff_seconds is not None:
            self._of.stats.transfer.observe(verdict.handoff_seconds)
        self._note(placement, verdict, context)
        worker, decode_id, pool = prefill.placement.instance_id, placement.instance_id, self._of.pool
        routing = structs.replace(request.routing or Routing(), prefill_worker_id=worker)
        if prefill.meeting is not None:
            # Not learned from: the transfer begins before the prefill has ended.
            return structs.replace(request, bootstrap_info=prefill.meeting, routing=routing)
        result: PrefillResult = prefill.value.result()
        self.cached_before = cached_tokens(result.prompt_tokens_details)
        self._transfer = StateTransfer(
            began=self._of.clock(),
            prompt_tokens=len(request.token_ids),
            decode_id=decode_id,
            ahead=pool.waiting(decode_id),
            sent=pool.sent(decode_id),
            batch_tokens=pool.batch_tokens(worker),
        )
        return structs.replace(request, prefill_result=result, routing=routing)

    def _failed(self, error: DynamoException, context: Context) -> str:
        """The reason for which the decode worker computes the prompt then."""
        self.release()
        if isinstance(error, ResourceExhausted):
            return "busy"
        if not context.is_stopped():
            log.warning("request %s: no prefill: %s", context.id(), error)
        return "failed"

    def _show(
        self,
        request: PreprocessedRequest,
        decode_id: int,
        verdict: HandoffVerdict,
        context: Context,
        prefill_id: int | None = None,
    ) -> None:
        self._shown = HandoffView(
            time=time(),
            request_id=context.id(),
            decode_id=decode_id,
            prompt_tokens=len(request.token_ids),
            uncached_tokens=verdict.uncached_tokens,
            reason=verdict.reason,
            stage=HandoffStage.LOCAL if prefill_id is None else HandoffStage.PREFILL,
            prefill_id=prefill_id,
        )
        self._of.recent.append(self._shown)

    def _note(self, placement: Placement, verdict: HandoffVerdict, context: Context) -> None:
        """The reason, for the counter, the log and the routing notes of the answer."""
        self._of.stats.decisions[verdict.remote, verdict.reason] += 1
        worker = self._prefill.placement.instance_id if self._prefill else None
        if placement.decision is not None:
            placement.decision.handoff = verdict
            placement.decision.prefill_worker_id = worker
        if log.isEnabledFor(logging.DEBUG):
            where = f"worker {worker:x}" if worker is not None else "the decode worker"
            log.debug("request %s: %s computes the prompt (%s)", context.id(), where, verdict.reason)


class Prefill(FirstAnswer):
    """A prompt at a prefill worker, or at another one if that fails: sink and companion of its delivery."""

    placement: Placement
    cached_before: int | None = None

    def __init__(self, handoffs: Handoffs, tokens: int, context: Context, show: Callable[[int], None]) -> None:
        super().__init__()
        self.meeting: BootstrapInfo | None = None
        """Where the decode worker meets the prefill worker."""
        self._of = handoffs
        self._tokens = tokens
        self._show = show
        self._waiting = False
        self._alone = False
        self._began = 0.0
        self._context = context.detached(context.id())
        self._forget = context.on_stop(lambda _: self.close())

    def delivery(self, request: PreprocessedRequest, decode_id: int) -> Delivery:
        """A delivery that does not wait for a prefill worker: the decode worker computes the prompt sooner."""
        pinned = request.routing.prefill_worker_id if request.routing else None
        options = DeliveryOptions(
            limit=ATTEMPTS - 1, pinned=pinned, backoff=partial(RequestBackoff, 0.0), beside=lambda: self
        )
        pool, asked = self._of.pool, prefill_request(request)
        return Delivery(
            partial(pool.place, decode_id, session=self._context.session),
            pool.instances,
            asked,
            self._context,
            self,
            options,
        )

    async def prepare(
        self, request: PreprocessedRequest, placement: Placement, context: Context
    ) -> PreprocessedRequest:
        pool, worker = self._of.pool, placement.instance_id
        self.placement = placement
        self._alone, self._waiting = not pool.waiting(worker), True
        pool.add_waiting(worker, self._tokens)
        self._show(worker)
        self.meeting = bootstrap_info(pool, placement, context.id())
        self._began = self._of.clock()
        # The rank is one of this worker, whichever the client named.
        routing = structs.replace(request.routing or Routing(), dp_rank=placement.dp_rank)
        return structs.replace(request, bootstrap_info=self.meeting, routing=routing)

    @property
    def seconds(self) -> float:
        """Since the prompt was sent."""
        return self._of.clock() - self._began

    async def answered(self, delivery: Delivery) -> None:
        """Wait for the prompt, unless the decode worker will. From then on it is at this worker and at no other.

        A worker that takes much longer than is known of others is given up. Raises DynamoException if none computes it.
        """
        while self.meeting is None and not self.value.done():
            worker = self.placement.instance_id
            expected = self._of.costs.prefill.seconds(self._of.pool.waiting(worker))
            limit = UNKNOWN_SECONDS if expected is None else max(LEAST_SECONDS, LATE * expected)
            if not (await asyncio.wait({self.value}, timeout=limit))[0]:
                why = f"prefill worker {worker:x} has not answered in {limit:.1f} s"
                delivery.stalled(ConnectionTimeout(why), hung=False)
        delivery.progress.stay()
        if self.meeting is None:
            self.value.result()

    def close(self) -> None:
        """End the stream: the worker stops computing, or takes back what it still offers."""
        self._forget()
        self._context.kill()
        self.fail(Unavailable("the request was given up"))

    def computed(self) -> None:
        """The prompt no longer counts as load of the worker, though the stream goes on."""
        self.placement.first_token()
        self.placement.release()
        self.release()

    def release(self) -> None:
        if self._waiting:
            self._waiting = False
            self._of.pool.add_waiting(self.placement.instance_id, -self._tokens)

    def tokens(self, ids: list[int]) -> None: ...

    def item(self, value: Any) -> None:
        if not isinstance(value, EngineOutput) or (value.finish_reason is None and value.disaggregated_params is None):
            return
        self.computed()
        if self.value.done():
            return
        if value.disaggregated_params is None:
            self.fail(Unavailable(f"the prefill worker offered nothing ({value.finish_reason})"))
            return
        if self._alone:
            self._learn(value.completion_usage)
        details = value.completion_usage.prompt_tokens_details if value.completion_usage else None
        self.value.set_result(
            PrefillResult(disaggregated_params=value.disaggregated_params, prompt_tokens_details=details)
        )

    def _learn(self, usage: Usage | None) -> None:
        now = self._of.clock()
        cached = cached_tokens(usage.prompt_tokens_details) if usage else None
        tokens = self._tokens if cached is None or not usage else usage.prompt_tokens - cached
        self._of.costs.prefill.add(max(0, tokens), now - self._began, now)


def prefill_request(request: PreprocessedRequest) -> PreprocessedRequest:
    """A request for the computed state of the prompt alone: it asks for one token, of any kind."""
    return structs.replace(
        request,
        routing=request.routing and structs.replace(request.routing, backend_instance_id=None),
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
