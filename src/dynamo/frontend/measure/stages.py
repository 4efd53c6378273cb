"""The stages of a request: how long they take, and how many requests are in each right now.

The pipeline measures them; the metrics' names are here. No histogram has a model label: the dashboards that know these
names do not expect one.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from dynamo.pipeline.preprocess import PromptTimes
from dynamo.runtime.metrics import Histogram, Labels, Metric, MetricFamily, families

STAGE_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0)
SHORT_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
TEMPLATE_BOUNDS = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05)
TOKENIZER_BOUNDS_MS = (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ROUNDTRIP_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
PREPROCESS, ROUTE, DISPATCH = "preprocess", "route", "dispatch"
PHASES = {PREPROCESS: "", ROUTE: "aggregated", DISPATCH: "aggregated"}
"""The stages a request can be in until its first token, and their phase: prefill and decode are never split."""


class Stages:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.preprocess = Histogram(STAGE_BOUNDS)
        """From the moment the model is known to the call of the router."""
        self.route = Histogram(STAGE_BOUNDS)
        """From there until a worker is chosen, waiting for a free one included."""
        # These two are exported under two names each, with the bounds of both.
        self.prompts = PromptTimes(
            template=Histogram(TEMPLATE_BOUNDS),
            tokenize=Histogram(sorted({*SHORT_BOUNDS, *(bound / 1000 for bound in TOKENIZER_BOUNDS_MS)})),
        )
        self.roundtrip = Histogram(sorted({*STAGE_BOUNDS, *ROUNDTRIP_BOUNDS}))
        """From the choice of the worker to the first token."""

    def observe(self, preprocess: float, route: float, roundtrip: float) -> None:
        """Observe the stages of a request that has its first token."""
        self.preprocess.observe(preprocess)
        self.route.observe(route)
        self.roundtrip.observe(roundtrip)

    def snapshot(self, by_stage: Counter[str], streams: int) -> list[MetricFamily]:
        """`by_stage` counts the running requests by stage, `streams` those open at workers."""
        seen: list[tuple[Labels, _Seen]] = [({}, _Seen(self, by_stage, streams))]
        return [*families(_METRICS, seen, f"{self._prefix}_"), *families(_PLANE, seen, "dynamo_request_plane_")]


class _Seen(Struct, frozen=True):
    stages: Stages
    by_stage: Counter[str]
    streams: int


_METRICS: tuple[Metric[_Seen], ...] = (
    Metric(
        "histogram", "stage_duration_seconds", "How long a stage of a request takes",
        lambda seen: {
            (PREPROCESS,): seen.stages.preprocess,
            (ROUTE,): seen.stages.route,
            ("transport_roundtrip",): seen.stages.roundtrip,
        },
        ("stage",),
    ),
    Metric("gauge", "stage_requests", "Requests in a stage",
        lambda seen: {(stage, phase): seen.by_stage[stage] for stage, phase in PHASES.items()}, ("stage", "phase")),
    Metric("histogram", "template_seconds", "Messages into a prompt", lambda seen: seen.stages.prompts.template),
    Metric("histogram", "tokenize_seconds", "A prompt into token ids", lambda seen: seen.stages.prompts.tokenize),
    Metric("histogram", "tokenizer_latency_ms", "What the tokenizer takes, in milliseconds",
        lambda seen: {("tokenize",): seen.stages.prompts.tokenize}, ("operation",), scale=1000),
)  # fmt: skip
_PLANE: tuple[Metric[_Seen], ...] = (
    Metric("histogram", "roundtrip_ttft_seconds", "From a request's sending to its first token",
        lambda seen: seen.stages.roundtrip),
    Metric("gauge", "inflight_requests", "Streams open at workers", lambda seen: seen.streams),
)  # fmt: skip
