"""The stages of a request: how long they take, and how many requests are in each right now.

The pipeline measures them; the metrics' names are here. No histogram has a model label: the dashboards that know these
names do not expect one.
"""

from __future__ import annotations

from collections import Counter

from dynamo.pipeline.prompt_times import PromptTimes
from dynamo.runtime.metrics.instruments import Histogram, MetricFamily, Sample

PLANE = "dynamo_request_plane"
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
        return [
            self._durations(),
            self._requests_by_stage(by_stage),
            self._one(f"{self._prefix}_template_seconds", "Messages into a prompt", self.prompts.template),
            self._one(f"{self._prefix}_tokenize_seconds", "A prompt into token ids", self.prompts.tokenize),
            self._tokenizer(),
            self._one(f"{PLANE}_roundtrip_ttft_seconds", "From a request's sending to its first token", self.roundtrip),
            MetricFamily(
                f"{PLANE}_inflight_requests", "Streams open at workers", "gauge",
                [Sample(f"{PLANE}_inflight_requests", {}, streams)],
            ),
        ]  # fmt: skip

    def _durations(self) -> MetricFamily:
        name = f"{self._prefix}_stage_duration_seconds"
        stages = {
            PREPROCESS: self.preprocess,
            ROUTE: self.route,
            "transport_roundtrip": self.roundtrip,
        }
        samples = [sample for stage, times in stages.items() for sample in times.samples(name, {"stage": stage})]
        return MetricFamily(name, "How long a stage of a request takes", "histogram", samples)

    def _requests_by_stage(self, by_stage: Counter[str]) -> MetricFamily:
        name = f"{self._prefix}_stage_requests"
        samples = [Sample(name, {"stage": stage, "phase": phase}, by_stage[stage]) for stage, phase in PHASES.items()]
        return MetricFamily(name, "Requests in a stage", "gauge", samples)

    def _tokenizer(self) -> MetricFamily:
        name = f"{self._prefix}_tokenizer_latency_ms"
        samples = list(self.prompts.tokenize.samples(name, {"operation": "tokenize"}, 1000))
        return MetricFamily(name, "What the tokenizer takes, in milliseconds", "histogram", samples)

    def _one(self, name: str, help: str, times: Histogram) -> MetricFamily:
        return MetricFamily(name, help, "histogram", list(times.samples(name, {})))
