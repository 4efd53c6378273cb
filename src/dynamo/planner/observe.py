"""Where measurements come from: a frontend's /metrics, or a Prometheus that scrapes frontends.

Both give pages of the same samples; what happened in an interval is the difference of two pages. What cannot be read or
makes no sense is missing data, never zero.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from dynamo.planner.config import PlannerConfig, PlannerConfigError, Role
from dynamo.planner.history import TrafficSeen
from dynamo.planner.parts import Measurement, PoolLoad, SourceError

PREFIX = "dynamo_frontend_"
_COUNTED = (
    "requests_started_total", "output_tokens_total",
    "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count",
    "input_sequence_tokens_sum", "input_sequence_tokens_count",
    "output_sequence_tokens_sum", "output_sequence_tokens_count",
)  # fmt: skip
_GAUGES = (
    "queued_requests", "inflight_requests", "model_waiting_requests", "model_context_length",
    "model_total_kv_blocks", "model_workers",
    "worker_active_decode_blocks", "worker_active_prefill_tokens", "router_queue_pending_isl_tokens",
)  # fmt: skip
_SPLITS = "dynamo_component_router_disagg_decisions_total"
_WANTED = frozenset((*(PREFIX + name for name in (*_COUNTED, *_GAUGES)), _SPLITS))
_LIMIT_SECONDS = 5.0
_PAGE_BYTES = 64 << 20
_PROMETHEUS_WINDOW = 60.0
"""Prometheus scrapes every 15 s or so: a shorter window would see nothing, or twice as much."""

Series = tuple[str, frozenset[tuple[str, str]]]
Page = Mapping[Series, float]


class FrontendSource:
    """Reads a frontend's /metrics."""

    def __init__(self, url: str, model: str | None = None) -> None:
        self._url = _checked(url, "frontend_url").removesuffix("/metrics") + "/metrics"
        self._model = model
        self._before: Page | None = None

    async def read(self) -> Measurement | None:
        try:
            page = parse_page(await _get(self._url), self._model)
        except SourceError:
            self._before = None
            raise
        before, self._before = self._before, page
        return None if before is None else measurement(before, page)


class PrometheusSource:
    """Asks a Prometheus for the same samples, now and a window earlier, and scales the difference to one interval."""

    def __init__(self, url: str, interval: float, model: str | None = None) -> None:
        self._url = _checked(url, "metric_pulling_prometheus_endpoint") + "/api/v1/query"
        self._interval = interval
        self._window = max(interval, _PROMETHEUS_WINDOW)
        self._model = model

    async def read(self) -> Measurement | None:
        now = time.time()
        before, page = await asyncio.gather(self._page(now - self._window), self._page(now))
        if not before:
            return None
        return measurement(before, page, self._interval / self._window)

    async def _page(self, at: float) -> Page:
        data = await _get(self._url, query=f'{{__name__=~"{"|".join(sorted(_WANTED))}"}}', time=f"{at:.3f}")
        return parse_answer(data, self._model)


def make_source(config: PlannerConfig) -> FrontendSource | PrometheusSource:
    if url := config.metric_pulling_prometheus_endpoint:
        return PrometheusSource(url, config.load_adjustment_interval_seconds, config.model)
    return FrontendSource(config.frontend_url, config.model)


def parse_page(data: bytes, model: str | None = None) -> Page:
    """Read the text that a frontend serves at /metrics."""
    try:
        samples = [
            (sample.name, sample.labels, float(sample.value))
            for family in text_string_to_metric_families(data.decode())
            for sample in family.samples
            if sample.name in _WANTED
        ]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise SourceError(f"the page is not in Prometheus' format: {error}") from error
    return _page(samples, model)


class _Vector(Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _QueryData(Struct, frozen=True):
    result: list[_Vector]


class _QueryResponse(Struct, frozen=True):
    status: str
    data: _QueryData | None = None
    error: str = ""


def parse_answer(data: bytes, model: str | None = None) -> Page:
    """Read Prometheus' response to an instant query."""
    try:
        answer = msgspec.json.decode(data, type=_QueryResponse)
        if answer.status != "success" or answer.data is None:
            raise SourceError(f"Prometheus rejects the query: {answer.error or answer.status}")
        samples = [
            (each.metric.get("__name__", ""), {k: v for k, v in each.metric.items() if k != "__name__"},
             float(each.value[1]))
            for each in answer.data.result
        ]  # fmt: skip
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"the answer is not Prometheus': {error}") from error
    return _page((sample for sample in samples if sample[0] in _WANTED), model, empty_allowed=True)


def _page(
    samples: Iterable[tuple[str, dict[str, str], float]], model: str | None, *, empty_allowed: bool = False
) -> Page:
    page: dict[Series, float] = {}
    known = list(samples)
    for name, labels, value in known:
        if not math.isfinite(value) or value < 0:
            raise SourceError(f"{name} is {value}")
        if model is None or labels.get("model", model) == model:
            page[name, frozenset(labels.items())] = value
    served = {labels["model"] for _, labels, _ in known if labels.get("model")}
    if served and model is not None and model not in served:
        raise SourceError(f"the frontend has no model '{model}', only {', '.join(sorted(served))}")
    if not page and not empty_allowed:
        raise SourceError("the page has no metrics of a frontend")
    return page


def measurement(before: Page, page: Page, scale: float = 1.0) -> Measurement | None:
    """The difference of two pages; None where a counter went back, as the frontend was started again."""
    if not page:
        raise SourceError("Prometheus has no metrics of a frontend")
    counted = dict.fromkeys(_COUNTED, 0.0)
    splits = {"remote": 0.0, "local": 0.0}
    for series, value in page.items():
        name, who = series[0].removeprefix(PREFIX), dict(series[1]).get("prefill", "")
        into, key = (splits, who) if name == _SPLITS else (counted, name)
        if key in into:
            more = value - before.get(series, 0.0)
            if more < 0:
                return None
            into[key] += scale * more
    decided = sum(splits.values())

    def mean(name: str) -> float | None:
        count = counted[f"{name}_count"]
        return counted[f"{name}_sum"] / count if count else None

    return Measurement(
        traffic=TrafficSeen(
            requests=counted["requests_started_total"],
            first_tokens=counted["time_to_first_token_seconds_count"],
            input_tokens=mean("input_sequence_tokens"),
            output_tokens=mean("output_sequence_tokens"),
            generated=counted["output_tokens_total"],
            ttft=mean("time_to_first_token_seconds"),
            itl=mean("inter_token_latency_seconds"),
            waiting=_sum(page, "queued_requests"),
            unfinished=_sum(page, "inflight_requests") + _sum(page, "model_waiting_requests"),
            context_length=_most(page, "model_context_length"),
            split_share=splits["remote"] / decided if decided else None,
        ),
        pools={role: pool for role in ("prefill", "decode") if (pool := _pool(page, role))},
    )


def _pool(page: Page, role: Role) -> PoolLoad | None:
    # Several frontends see the same workers.
    seen: dict[str, float] = {}
    for (name, labels), value in page.items():
        named = dict(labels)
        if name == PREFIX + "model_workers" and named.get("worker_type") == role:
            model = named.get("model", "")
            seen[model] = max(seen.get(model, 0.0), value)
    if not seen:
        return None
    serving = int(sum(seen.values()))
    queued = _sum(page, "worker_active_prefill_tokens", worker_type=role)
    if role == "prefill" or not _sum(page, "model_workers", worker_type="prefill"):
        queued += _sum(page, "router_queue_pending_isl_tokens")
    blocks = _most(page, "model_total_kv_blocks")
    used = _sum(page, "worker_active_decode_blocks", worker_type=role)
    known = blocks and serving and any(name == PREFIX + "worker_active_decode_blocks" for name, _ in page)
    return PoolLoad(
        serving=serving, queued_tokens=queued, kv_rate=used / (serving * blocks) if known and blocks else None
    )


def _values(page: Page, name: str, wanted: Mapping[str, str]) -> Iterable[float]:
    for (found, labels), value in page.items():
        if found == PREFIX + name and wanted.items() <= dict(labels).items():
            yield value


def _sum(page: Page, name: str, **wanted: str) -> float:
    return sum(_values(page, name, wanted))


def _most(page: Page, name: str) -> float | None:
    return max(_values(page, name, {}), default=None)


async def _get(url: str, **query: Any) -> bytes:
    limit = aiohttp.ClientTimeout(total=_LIMIT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url, params=query or None) as response:
            if response.status != 200:
                raise SourceError(f"{url} answers {response.status}")
            data = await response.content.read(_PAGE_BYTES)
            while more := await response.content.read(_PAGE_BYTES):
                data += more
                if len(data) > _PAGE_BYTES:
                    raise SourceError(f"{url} answers with more than {_PAGE_BYTES >> 20} MB")
            return data
    except TimeoutError:
        raise SourceError(f"{url} does not answer within {_LIMIT_SECONDS:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise SourceError(f"{url}: {error}") from error


def _checked(url: str, key: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise PlannerConfigError(f"{key}: '{url}' is not http://HOST:PORT")
    return url.rstrip("/")
