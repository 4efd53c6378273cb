"""One request as the log and the metrics see it: who asked for what, when the first token came, how it ended."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from time import perf_counter
from typing import Any

from aiohttp import web

from dynamo.frontend.measure.metrics import UNKNOWN_MODEL, FrontendMetrics, ModelMetrics
from dynamo.frontend.measure.stages import DISPATCH, PREPROCESS, ROUTE
from dynamo.pipeline.postprocess import Postprocess
from dynamo.protocols.engine import EngineOutput, Usage
from dynamo.protocols.errors import Cancelled, DynamoException, ResourceExhausted, Unknown, to_wire
from dynamo.router.delivery import Delivery
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class _NeverDone:
    """A reader that takes all a worker sends."""

    done = False


class Metered:
    """The stage that takes the time of each step of one stream. It is on the hot path: see benchmarks/metering.py."""

    __slots__ = (
        "_began",
        "_bounds",
        "_counts",
        "_exchange",
        "_last",
        "_postprocess",
        "_reader",
        "_reported",
        "_settled",
        "_sink",
        "_tokens",
    )

    def __init__(self, exchange: Exchange, sink: Sink) -> None:
        latency = exchange.metrics.inter_token
        self._bounds = latency.bounds
        self._counts = latency.counts
        self._exchange = exchange
        self._sink = sink
        self._tokens = sink.tokens
        self._postprocess = sink if isinstance(sink, Postprocess) else None
        self._reader = self._postprocess or _NeverDone
        self._began = self._last = 0.0
        self._settled = (0.0, 0)
        self._reported = 0

    def tokens(self, ids: list[int]) -> None:
        if self._reader.done:
            # The worker has not yet heard that a stop string ended the answer.
            return
        now = perf_counter()
        if self._last:
            count = len(ids) or 1
            # The sum of the latencies is the time between the first and the last step: `settle` adds it.
            self._counts[bisect_left(self._bounds, (now - self._last) / count)] += count
        else:
            self._first(now)
        self._last = now
        self._tokens(ids)

    def item(self, value: Any) -> None:
        now = perf_counter()
        if isinstance(value, EngineOutput):
            self._output(value, now)
        else:
            self._step(now, 1)
            self._usage(value.get("usage") if isinstance(value, dict) else None)
        self._sink.item(value)

    def _usage(self, usage: Any) -> None:
        """Any chunk of a worker that takes text may report the usage so far."""
        if isinstance(usage, dict):
            generated, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
            if isinstance(generated, int) and isinstance(prompt, int):
                self._reported = generated
                self._exchange.input_tokens = prompt

    def _output(self, output: EngineOutput, now: float) -> None:
        if output.token_ids or output.text:
            self._step(now, len(output.token_ids) or 1)
        if output.completion_usage:
            self._exchange.cached_tokens += cached_tokens(output.completion_usage)
        reason = output.finish_reason
        if reason and reason.startswith("error"):
            self._exchange.error = Unknown(reason)

    def _step(self, now: float, count: int) -> None:
        if self._last:
            self._counts[bisect_left(self._bounds, (now - self._last) / count)] += count
        else:
            self._first(now)
        self._last = now

    def _first(self, now: float) -> None:
        self._began = now
        self._settled = (now, 0)
        self._exchange.first_token(now)

    def end(self) -> None:
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        if self._postprocess is None or not self._postprocess.complete:
            self._exchange.error = error
        self._sink.fail(error)

    @property
    def count(self) -> int:
        """Tokens generated so far, as in the usage the client sees."""
        return self._postprocess.count if self._postprocess else self._reported

    @property
    def streaming(self) -> float:
        """Seconds between the first step and the last."""
        return self._last - self._began

    def settle(self) -> None:
        """Add to the metrics what the hot path left for later."""
        last, count = self._settled
        metrics = self._exchange.metrics
        metrics.inter_token.total += self._last - last
        metrics.output_tokens.value += self.count - count
        self._settled = (self._last, self.count)


def cached_tokens(usage: Usage) -> int:
    count = (usage.prompt_tokens_details or {}).get("cached_tokens")
    return count if isinstance(count, int) and count > 0 else 0


class Exchanges:
    """All requests that run, and the metrics they end up in."""

    def __init__(self, metrics: FrontendMetrics) -> None:
        self.metrics = metrics
        self.running: set[Exchange] = set()
        """Those that run a model."""

    def begin(
        self, method: str, path: str, request_id: str, endpoint: str | None = None, *, is_probe: bool = False
    ) -> Exchange:
        """`endpoint` is the metrics' label of a request that runs a model."""
        exchange = Exchange(self.metrics, request_id, method, path, endpoint, is_probe=is_probe)
        if endpoint:
            self.running.add(exchange)
        return exchange

    def end(self, exchange: Exchange, status: int) -> None:
        self.running.discard(exchange)
        exchange.end(status)

    def settle(self) -> None:
        """Bring the metrics up to this moment."""
        for exchange in self.running:
            exchange.settle()

    def stages(self) -> tuple[Counter[str], int]:
        """How many running requests are in each stage, and how many streams they have open at workers."""
        stages = Counter(exchange.stage for exchange in self.running)
        return stages, sum(exchange.streams for exchange in self.running)


class Exchange:
    __slots__ = (
        "_all", "_asked", "_deliveries", "_first", "_known", "_model", "_stages", "_timed", "cached_tokens", "endpoint",
        "error", "input_tokens", "is_probe", "method", "metrics", "path", "request_id", "span", "started", "stream",
        "traceparent",
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
    ) -> None:
        self.started = perf_counter()
        self.request_id = request_id
        self.method = method
        self.path = path
        self.endpoint = endpoint
        self.is_probe = is_probe
        self.stream = False
        self.error: DynamoException | None = None
        self.traceparent: str | None = None
        self.span: Any = None
        self.input_tokens = 0
        self.cached_tokens = 0
        self.metrics: ModelMetrics
        self._all = metrics
        self._model: ModelMetrics | None = None
        self._known = self._asked = self._first = 0.0
        self._timed = False
        self._stages: list[Metered] = []
        self._deliveries: list[Delivery] = []

    def served_by(self, model: str) -> None:
        """The model is known and served here."""
        if self._model is None:
            self._known = perf_counter()
            self._model = self.metrics = self._all.model(model)
            self._model.started.value += 1
            self._model.inflight.value += 1
            self._model.active.value += 1
            self._model.queued.value += 1

    def metered(self, sink: Sink, prompt_tokens: int = 0) -> Metered:
        """The stage in front of `sink`, for one stream of this request."""
        self.input_tokens += prompt_tokens
        stage = Metered(self, sink)
        self._stages.append(stage)
        return stage

    def delivering(self, delivery: Delivery) -> None:
        """A stream of this request goes to the router now."""
        if not self._deliveries:
            self._asked = perf_counter()
        self._deliveries.append(delivery)

    def first_token(self, now: float) -> None:
        if not self._first:
            self._first = now
            self.metrics.queued.value -= 1
            self.metrics.time_to_first.observe(now - self.started)

    @property
    def stage(self) -> str:
        """Where it is on its way to the first token; empty before its model is known and after that token."""
        if self._model is None or self._first:
            return ""
        if not self._deliveries:
            return PREPROCESS
        return DISPATCH if self.streams == len(self._deliveries) else ROUTE

    @property
    def streams(self) -> int:
        """How many of its streams are open at workers."""
        return sum(one.placement is not None and not one.placement.released for one in self._deliveries)

    @property
    def model(self) -> str:
        return self._model.name if self._model else UNKNOWN_MODEL

    @property
    def time_to_first(self) -> float | None:
        return self._first - self.started if self._first else None

    @property
    def output_tokens(self) -> int:
        return sum([stage.count for stage in self._stages])

    @property
    def workers(self) -> list[int]:
        return [one.instance_id for one in self._deliveries if one.instance_id is not None]

    @property
    def request_type(self) -> str:
        return "stream" if self.stream else "unary"

    def settle(self) -> None:
        """Add to the metrics what is known and not yet in them."""
        if self._first and not self._timed:
            self._timed = True
            placed = self._deliveries[0].history.placed_at
            self.metrics.stages.passed(self._asked - self._known, placed - self._asked, self._first - placed)
        for stage in self._stages:
            stage.settle()

    def end(self, status: int) -> None:
        """Called once, when the answer is complete or was given up."""
        duration = perf_counter() - self.started
        if self.endpoint:
            self._count(status, duration)
        # Probes come every few seconds: their lines would drown the others.
        level = logging.DEBUG if self.is_probe else logging.INFO
        if log.isEnabledFor(level):
            self._log(level, status, duration)

    def forget(self) -> None:
        """Drop the references that lead back to this object, so that it is freed without the garbage collector."""
        self._stages.clear()
        self._deliveries.clear()
        self.error = None

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
        self.settle()
        model.inflight.value -= 1
        model.active.value -= 1
        if not self._first:
            model.queued.value -= 1
        model.duration.observe(duration)
        if self.input_tokens:
            model.input_tokens.observe(self.input_tokens)
            model.cached_tokens.observe(self.cached_tokens)
        if self._first:
            model.output_sequence.observe(self.output_tokens)
        if self.endpoint == "embeddings":
            counts.embedding_latency.at(model.name).observe(duration)
        for number, one in enumerate(self._deliveries):
            if one.history.migrations:
                counts.moved(model.name, one.history)
            placement = one.placement
            if placement is not None and self._first:
                stage = self._stages[number]
                counts.last_seen[placement.instance_id, placement.dp_rank] = (
                    self._first - self.started, self.input_tokens, stage.streaming, stage.count
                )  # fmt: skip

    def _log(self, level: int, status: int, duration: float) -> None:
        about = ""
        if self._model:
            first = "-" if self.time_to_first is None else f"{self.time_to_first * 1e3:.1f}ms"
            workers = ",".join(f"{worker:x}" for worker in self.workers) or "-"
            tokens = f"in={self.input_tokens or '-'} out={self.output_tokens or '-'}"
            about = f" model={self.model} worker={workers} {tokens} ttft={first}"
        if self.error is not None:
            about += f" error={one_line(self.error.message)!r}"
        log.log(
            level, "%s %s %d%s total=%.1fms [%s]",
            self.method, self.path, status, about, duration * 1e3, self.request_id,
            extra={"x_request_id": self.request_id, "model": self.model, "endpoint": self.endpoint},
        )  # fmt: skip


def one_line(text: str) -> str:
    """Text that clients or engines chose, fit for one line of the log."""
    return "".join(character if character.isprintable() else " " for character in text[:500])


def error_type(status: int, error: DynamoException | None) -> str:
    """The label of a failure; an error after the first byte counts although the status was 200."""
    if isinstance(error, ResourceExhausted):
        return "overload"
    if isinstance(error, Cancelled):
        return "cancelled"
    if error is not None:
        status = to_wire(error)[2]
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


EXCHANGE = web.RequestKey("exchange", Exchange)
"""Where a request keeps its exchange."""
