"""The record of a request, from which its log line and its part of the metrics are made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, time
from typing import Any

from aiohttp import web

from dynamo.api.openai.trace_payload import CapturedPayload
from dynamo.frontend.measure.metrics import UNKNOWN_MODEL, FrontendMetrics, MigratedRequest, ModelMetrics
from dynamo.frontend.measure.prompt_changes import Decode, PromptChange
from dynamo.frontend.measure.stages import DISPATCH, PREPROCESS, ROUTE
from dynamo.frontend.measure.worker_metrics import LastRequest
from dynamo.pipeline.stream_meter import StreamMeter
from dynamo.protocols.engine import Session, Tenant
from dynamo.protocols.errors import Cancelled, DynamoException, ResourceExhausted
from dynamo.protocols.worker_name import worker_name
from dynamo.router.delivery.delivery import Delivery

log = logging.getLogger(__name__)

CLIENT_LEFT = 499
"""The status of a request whose client left before its answer."""


class RequestRecord:
    """Implements `RequestObserver` for requests over HTTP."""

    __slots__ = (
        "_all", "_deliveries", "_error", "_first_token", "_meters", "_model", "_model_known", "_routing_began",
        "change", "embeds", "endpoint", "is_probe", "limit_headers", "method", "outcome", "path", "payload",
        "request_id", "session", "span", "started", "stream", "tenant", "traceparent", "turn", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        metrics: FrontendMetrics,
        request_id: str,
        method: str,
        path: str,
        endpoint: str | None = None,
        *,
        is_probe: bool = False,
        embeds: bool = False,
    ) -> None:
        self.started = perf_counter()
        self.request_id = request_id
        self.method = method
        self.path = path
        self.endpoint = endpoint
        self.is_probe = is_probe
        self.embeds = embeds
        self.stream = False
        self.traceparent: str | None = None
        self.span: Any = None
        self.outcome: asyncio.Future[int] | None = None
        """Set for a request that goes on after its answer: the status with which it will end."""
        self.session: Session | None = None
        self.turn = 0
        """The number of this turn in its session, once it has ended."""
        self.tenant: Tenant | None = None
        """Whose it is in the routers' queues, if the server has keys."""
        self.limit_headers: Callable[[], Mapping[str, str]] | None = None
        """What to tell the client of the limits of its key, if there are any."""
        self.warnings: list[str] = []
        """What was left out of it."""
        self.change: PromptChange | None = None
        """Where its prompt differs from that of an earlier turn, if that cost cached tokens."""
        self.payload: CapturedPayload | None = None
        self._all = metrics
        self._model: ModelMetrics | None = None
        self._error: DynamoException | None = None
        self._model_known = self._routing_began = self._first_token = 0.0
        self._meters: list[StreamMeter] = []
        self._deliveries: list[Delivery] = []

    @property
    def notices(self) -> list[str]:
        """What its client is told in a header, and in `nvext` where the answer has that."""
        return [*self.warnings, str(self.change)] if self.change else self.warnings

    @property
    def age(self) -> float:
        """Seconds since it arrived."""
        return perf_counter() - self.started

    def go_on(self) -> asyncio.Future[int]:
        """The request ends when this future gets its status, not when it is answered."""
        self.outcome = asyncio.get_running_loop().create_future()
        return self.outcome

    def served_by(self, model: str) -> None:
        """The model is known and served here."""
        if self._model is None:
            self._model_known = perf_counter()
            self._model = self._all.model(model)
            self._model.started.value += 1
            self._model.inflight.value += 1
            self._model.queued.value += 1

    def attached(self, images: int, audio: int) -> None:
        for count, family in ((images, self._all.images), (audio, self._all.audio)):
            if count:
                family.at(self.model).observe(count)

    def prepared(self, session: Session, token_ids: Sequence[int], decode: Decode) -> None:
        counts = self._all
        self.change = change = counts.changes.examine(session, self.model, token_ids, decode)
        if change:
            counts.prompt_changes.at(self.model, change.cause).value += 1
            counts.prompt_change_tokens.at(self.model, change.cause).value += change.lost_tokens
            log.warning("session %s: %s [%s]", one_line(session.id), change, self.request_id)

    def delivering(self, delivery: Delivery, prompt_tokens: int = 0) -> None:
        assert self._model
        if not self._deliveries:
            self._routing_began = perf_counter()
        self._deliveries.append(delivery)
        delivery.sink = meter = StreamMeter(delivery.sink, self._model.inter_token, prompt_tokens)
        self._meters.append(meter)

    def abort(self, error: DynamoException) -> None:
        for delivery in tuple(self._deliveries):
            delivery.abort(error)

    def failed(self, error: DynamoException) -> None:
        """The client got this error instead of an answer."""
        self._error = error

    @property
    def error(self) -> DynamoException | None:
        """Why the client did not get a whole answer. Streams cancelled because another failed do not count."""
        errors = [meter.error for meter in self._meters if meter.error]
        if self._error or not errors:
            return self._error
        return min(errors, key=lambda error: isinstance(error, Cancelled))

    @property
    def stage(self) -> str:
        """The stage before the first token; empty before the model is known and after that token."""
        if self._model is None or self._first_token:
            return ""
        if not self._deliveries:
            return PREPROCESS
        return DISPATCH if self.open_streams == len(self._deliveries) else ROUTE

    @property
    def open_streams(self) -> int:
        """How many of its streams are open at workers."""
        return sum(one.placement is not None and not one.placement.released for one in self._deliveries)

    @property
    def model(self) -> str:
        return self._model.name if self._model else UNKNOWN_MODEL

    @property
    def time_to_first_token(self) -> float | None:
        """None before `settle` has found a first token."""
        return self._first_token - self.started if self._first_token else None

    @property
    def input_tokens(self) -> int:
        tokens = 0
        for meter in self._meters:
            tokens += meter.prompt_tokens
        return tokens

    @property
    def cached_tokens(self) -> int:
        tokens = 0
        for meter in self._meters:
            tokens += meter.cached_tokens
        return tokens

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """One per prompt and choice."""
        return self._deliveries

    @property
    def output_tokens(self) -> int:
        return sum([meter.count for meter in self._meters])

    @property
    def workers(self) -> list[int]:
        return [one.instance_id for one in self._deliveries if one.instance_id is not None]

    @property
    def prefills(self) -> list[str]:
        """For each request to a decode worker: which worker computed the prompt, and why."""
        decisions = [one.placement.decision for one in self._deliveries if one.placement]
        return [
            f"{worker_name(each.prefill_worker_id or each.worker_id)}:{each.handoff.reason}"
            for each in decisions
            if each and each.handoff
        ]

    def stage_times(self) -> list[tuple[str, float, float]]:
        """The stages that were reached: their names, begins and ends, by `perf_counter`."""
        placed = self._deliveries[0].history.placed_at if self._deliveries else 0.0
        begins = {
            "gate": self.started,
            "preprocess": self._model_known,
            "route": self._routing_began,
            "prefill": placed,
            "decode": self._first_token,
        }
        reached = [(name, began) for name, began in begins.items() if began]
        ends = [*(began for _, began in reached[1:]), perf_counter()]
        return [(name, began, ended) for (name, began), ended in zip(reached, ends, strict=True)]

    def server_timing(self) -> str | None:
        """The header `Server-Timing` of a whole answer: this server's time, and the workers'; None without a worker."""
        placed = self._deliveries[0].history.placed_at if self._deliveries else 0.0
        if not placed:
            return None
        here, there = (placed - self.started) * 1e3, (perf_counter() - placed) * 1e3
        return f"dynamo;dur={here:.2f}, engine;dur={there:.2f}"

    @property
    def request_type(self) -> str:
        return "stream" if self.stream else "unary"

    def settle(self) -> None:
        """Add to the metrics what the streams have measured since the last time."""
        model = self._model
        if model is None:
            return
        if not self._first_token:
            self._first_token = min((meter.first for meter in self._meters if meter.first), default=0.0)
            if self._first_token:
                self._observe_first_token(model)
        for meter in self._meters:
            seconds, tokens = meter.progress()
            model.inter_token.total += seconds
            model.output_tokens.value += tokens

    def _observe_first_token(self, model: ModelMetrics) -> None:
        placed = self._deliveries[0].history.placed_at
        model.queued.value -= 1
        model.time_to_first.observe(self._first_token - self.started)
        model.routed_first.observe(self._first_token - self._routing_began)
        model.stages.observe(
            self._routing_began - self._model_known, placed - self._routing_began, self._first_token - placed
        )

    def end(self, status: int, left_out: int | None = 0) -> None:
        """Called once, when the answer is complete or was given up.

        `left_out` counts the refusals before this one that were not logged; None if this one is not to be either.
        """
        duration = perf_counter() - self.started
        if self.endpoint:
            self._count(status, duration)
        # Probes come every few seconds: their lines would drown the others.
        level = logging.DEBUG if self.is_probe or left_out is None else logging.INFO
        if log.isEnabledFor(level):
            self._log(level, status, duration, left_out or 0)

    def forget(self) -> None:
        """Drop the references that lead back to this object, so that it is freed without the garbage collector."""
        self._meters.clear()
        self._deliveries.clear()
        self._error = None
        self.payload = None

    def _count(self, status: int, duration: float) -> None:
        counts = self._all
        assert self.endpoint
        failure = error_type(status, self.error)
        outcome = "error" if failure else "success"
        counts.requests.at(self.model, self.endpoint, self.request_type, outcome, failure).value += 1
        if failure == "cancelled":
            counts.cancellations.at(self.model, self.endpoint, self.request_type).value += 1
        elif failure == "overload":
            counts.rejections.at(self.model, self.endpoint).value += 1
        model = self._model
        if model is None:
            return
        if failure and any(delivery.history.too_long for delivery in self._deliveries):
            counts.too_long.at(model.name).value += 1
        self.settle()
        model.inflight.value -= 1
        if not self._first_token:
            model.queued.value -= 1
        model.duration.observe(duration)
        input_tokens = self.input_tokens
        if input_tokens:
            model.input_tokens.observe(input_tokens)
            model.cached_tokens.observe(self.cached_tokens)
        if self._first_token:
            model.output_sequence.observe(self.output_tokens)
        if self.embeds:
            counts.embedding_latency.at(model.name).observe(duration)
        for meter, delivery in zip(self._meters, self._deliveries, strict=True):
            if delivery.history.migrations:
                counts.count_migrations(model.name, delivery.history)
                counts.migrated.append(
                    MigratedRequest(
                        time(), self.request_id, model.name, delivery.history.finished_migrations, delivery.instance_id
                    )
                )
            placement = delivery.placement
            if placement is not None and self._first_token:
                counts.last_requests[placement.instance_id, placement.dp_rank] = LastRequest(
                    self._first_token - self.started, input_tokens, meter.streaming / max(1, meter.count - 1)
                )

    def _log(self, level: int, status: int, duration: float, left_out: int) -> None:
        about = ""
        if self._model:
            first = f"{(self._first_token - self.started) * 1e3:.1f}ms" if self._first_token else "-"
            workers = ",".join(worker_name(worker) for worker in self.workers) or "-"
            tokens = f"in={self.input_tokens or '-'} out={self.output_tokens or '-'}"
            about = f" model={self.model} worker={workers} {tokens} ttft={first}"
            if prefills := self.prefills:
                about += f" prefill={','.join(prefills)}"
        if self.session and (self.session.named or self.turn > 1):
            about += f" session={one_line(self.session.id[:64])} turn={self.turn}"
        if error := self.error:
            about += f" error={one_line(error.message)!r}"
        if left_out:
            about += f" refused_before={left_out}"
        log.log(
            level, "%s %s %d%s total=%.1fms [%s]",
            self.method, self.path, status, about, duration * 1e3, self.request_id,
            extra={"x_request_id": self.request_id, "model": self.model, "endpoint": self.endpoint},
        )  # fmt: skip


def one_line(text: str) -> str:
    """Text from clients or engines, made safe for one line of the log."""
    return "".join(character if character.isprintable() else " " for character in text[:500])


def error_type(status: int, error: DynamoException | None) -> str:
    """The label of a failure; an error after the first byte counts although the status was 200."""
    if error is None:
        if status < 400:
            return ""
    elif isinstance(error, ResourceExhausted):
        return "overload"
    elif isinstance(error, Cancelled):
        return "cancelled"
    else:
        status = error.status
    match status:
        case 499:
            return "cancelled"
        case 404:
            return "not_found"
        case 429 | 529:
            return "overload"
        case 501:
            return "not_implemented"
        case 503:
            return "unavailable"
        case 504:
            return "response_timeout"
    if status < 400:
        return ""
    return "validation" if status < 500 else "internal"


RECORD = web.RequestKey("record", RequestRecord)
"""Where a request keeps its record."""
