"""The frontend's metrics, under the names dashboards already know."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from dynamo.frontend.measure.prompt_changes import PromptChanges
from dynamo.frontend.measure.stages import Stages
from dynamo.frontend.measure.worker_metrics import LastRequests
from dynamo.protocols.card import ModelCard
from dynamo.router.delivery.history import DeliveryHistory, Migration
from dynamo.runtime.metrics import Family, Histogram, Kind, Metric, MetricFamily, Number, families, log_buckets
from dynamo.serving.served_model import ServedModel

UNKNOWN_MODEL = "unknown_model"
"""The label of all requests whose model is not served here: clients must not be able to create series."""


MIGRATED_KEPT = 32
FIRST_TOKEN_BOUNDS = log_buckets(0.001, 480, 18)
MEDIA_BOUNDS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]


class MigratedRequest(Struct, frozen=True):
    """A request that is over and has migrated."""

    time: float
    """Seconds since 1970, at its end."""
    request_id: str
    model: str
    migrations: tuple[Migration, ...]
    worker_id: int | None
    """The last instance it was sent to."""


class ModelMetrics:
    """The instruments of one model, looked up once."""

    __slots__ = (
        "cached_tokens", "duration", "inflight", "input_tokens", "inter_token", "name", "output_sequence",
        "output_tokens", "queued", "routed_first", "stages", "started", "time_to_first",
    )  # fmt: skip

    def __init__(self, metrics: FrontendMetrics, name: str) -> None:
        self.name = name
        self.stages = metrics.stages
        self.started = metrics.started.at(name)
        self.inflight = metrics.inflight.at(name)
        self.queued = metrics.queued.at(name)
        self.duration = metrics.duration.at(name)
        self.input_tokens = metrics.input_tokens.at(name)
        self.output_sequence = metrics.output_sequence.at(name)
        self.output_tokens = metrics.output_tokens.at(name)
        self.cached_tokens = metrics.cached_tokens.at(name)
        self.time_to_first = metrics.time_to_first.at(name)
        self.routed_first = Histogram(FIRST_TOKEN_BOUNDS)
        """From the call of the router to the first token."""
        self.inter_token = metrics.inter_token.at(name)


class FrontendMetrics:
    """All families of this process."""

    def __init__(self, prefix: str = "dynamo_frontend") -> None:
        self.prefix = prefix
        self._families: list[Family[Number] | Family[Histogram]] = []
        self._models: dict[str, ModelMetrics] = {}
        tokens = log_buckets(50, 128_000, 12)
        model = ("model",)
        self.requests = self._number(
            "requests_total", "counter", "Requests answered",
            ("model", "endpoint", "request_type", "status", "error_type"),
        )  # fmt: skip
        self.started = self._number("requests_started_total", "counter", "Requests begun", model)
        self.inflight = self._number("inflight_requests", "gauge", "Requests being served", model)
        self.queued = self._number("queued_requests", "gauge", "Requests whose first token has not come yet", model)
        self.disconnected = self._number("disconnected_clients", "gauge", "Clients that left before their answer", ())
        self.duration = self._histogram(
            "request_duration_seconds", "From arrival to the answer's end", log_buckets(1, 512, 10)
        )
        self.input_tokens = self._histogram("input_sequence_tokens", "Tokens in the prompts of a request", tokens)
        self.output_sequence = self._histogram(
            "output_sequence_tokens", "Tokens generated for a request", log_buckets(50, 32_000, 10)
        )
        self.output_tokens = self._number("output_tokens_total", "counter", "Tokens generated", model)
        self.cached_tokens = self._histogram("cached_tokens", "Prompt tokens a worker had cached", tokens)
        self.time_to_first = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", FIRST_TOKEN_BOUNDS
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Time per token after the first", log_buckets(0.001, 2, 13)
        )
        self.migrations = self._number(
            "model_migration_total", "counter", "Requests moved to another worker", ("model", "migration_type")
        )
        self.migration_duration = self._histogram(
            "model_migration_duration_seconds", "From a worker's failure to what came of the move",
            log_buckets(0.001, 480, 18), ("model", "migration_type", "outcome"),
        )  # fmt: skip
        self.too_long = self._number(
            "model_migration_max_seq_len_exceeded_total", "counter", "Requests too long to migrate", model
        )
        self.embedding_latency = self._histogram(
            "embedding_latency_seconds", "From the arrival of a request for embeddings to its answer",
            log_buckets(0.001, 10, 14),
        )  # fmt: skip
        self.images = self._histogram("images_per_request", "Images in a request that has some", MEDIA_BOUNDS)
        self.audio = self._histogram("audio_per_request", "Recordings in a request that has some", MEDIA_BOUNDS)
        self.cancellations = self._number(
            "model_cancellation_total", "counter", "Requests cancelled", ("model", "endpoint", "request_type")
        )
        self.rejections = self._number(
            "model_rejection_total", "counter", "Requests refused for lack of capacity", ("model", "endpoint")
        )
        changed = ("model", "cause")
        self.prompt_changes = self._number(
            "prompt_changes_total", "counter", "Prompts that changed before their end, in a session", changed
        )
        self.prompt_change_tokens = self._number(
            "prompt_change_tokens_total", "counter", "Tokens that were not cached for such a change", changed
        )
        self.changes = PromptChanges()
        self.disconnected.at()
        self.stages = Stages(prefix)
        self.last_requests: LastRequests = {}
        self.migrated: deque[MigratedRequest] = deque(maxlen=MIGRATED_KEPT)

    def _number(self, name: str, kind: Kind, help: str, labels: tuple[str, ...]) -> Family[Number]:
        family = Family(kind, f"{self.prefix}_{name}", help, labels, Number)
        self._families.append(family)
        return family

    def _histogram(
        self, name: str, help: str, bounds: list[float], labels: tuple[str, ...] = ("model",)
    ) -> Family[Histogram]:
        family = Family("histogram", f"{self.prefix}_{name}", help, labels, lambda: Histogram(bounds))
        self._families.append(family)
        return family

    def model(self, name: str) -> ModelMetrics:
        """`name` must be that of a served model, or UNKNOWN_MODEL."""
        known = self._models.get(name)
        if known is None:
            known = self._models[name] = ModelMetrics(self, name)
        return known

    def asked(self, name: str) -> ModelMetrics | None:
        """The instruments of a model that has had a request."""
        return self._models.get(name)

    def count_migrations(self, model: str, history: DeliveryHistory) -> None:
        """Count the migrations of a request that is over."""
        self.migrations.at(model, "new_request").value += history.restarts
        self.migrations.at(model, "ongoing_request").value += history.migrations - history.restarts
        for migration in history.finished_migrations:
            self.migration_duration.at(model, migration.kind, migration.outcome).observe(migration.seconds)

    def snapshot(self, cards: Iterable[ModelCard]) -> list[MetricFamily]:
        return [
            *(family.snapshot() for family in self._families),
            _ACTIVE.family([({}, self)], f"{self.prefix}_"),
            *families(_CARDS, [({"model": card.name}, card) for card in cards], f"{self.prefix}_model_"),
        ]


def adapter_gauges(metrics: FrontendMetrics, models: Iterable[ServedModel]) -> list[MetricFamily]:
    adapters = [
        ({"lora": model.name}, _Adapter(model, metrics.asked(model.name))) for model in models if model.card.lora
    ]
    return families(_ADAPTERS, adapters, f"{metrics.prefix}_lora_")


class _Adapter(Struct, frozen=True):
    """A LoRA adapter, which is served as a model of its own; `asked` once it has had a request."""

    model: ServedModel
    asked: ModelMetrics | None

    @property
    def running(self) -> float:
        return self.asked.inflight.value if self.asked else 0


_ACTIVE: Metric[FrontendMetrics] = Metric("gauge", "active_requests", "Requests between arrival and answer's end",
    lambda metrics: metrics.inflight.children, ("model",))  # fmt: skip
"""The same as `inflight_requests`, under a name that dashboards know too."""
_CARDS: tuple[Metric[ModelCard], ...] = (
    Metric("gauge", "context_length", "Longest sequence the model takes", lambda card: card.context_length),
    Metric("gauge", "kv_cache_block_size", "Tokens in a block of the KV cache", lambda card: card.kv_cache_block_size),
    Metric("gauge", "migration_limit", "How often a request may move", lambda card: card.migration_limit),
    Metric("gauge", "total_kv_blocks", "KV blocks of a worker", lambda card: card.runtime_config.total_kv_blocks),
    Metric("gauge", "max_num_seqs", "Sequences a worker runs at once", lambda card: card.runtime_config.max_num_seqs),
    Metric("gauge", "max_num_batched_tokens", "Tokens a worker takes in one step",
        lambda card: card.runtime_config.max_num_batched_tokens),
)  # fmt: skip
_ADAPTERS: tuple[Metric[_Adapter], ...] = (
    Metric("gauge", "active_requests", "Running requests with an adapter", lambda adapter: adapter.running),
    Metric("gauge", "is_active", "1 while a request with the adapter runs", lambda adapter: adapter.running > 0),
    Metric("gauge", "replica_factor", "Workers that have loaded an adapter",
        lambda adapter: len(adapter.model.router.instances.ids())),
)  # fmt: skip


def clean_prefix(text: str) -> str:
    """The prefix with `_` for every character that Prometheus does not allow."""
    cleaned = re.sub(r"[^a-zA-Z0-9_:]", "_", text).strip("_")
    if not cleaned:
        raise ValueError(f"--metrics-prefix must contain a letter or digit, not '{text}'")
    return f"_{cleaned}" if cleaned[0].isdigit() else cleaned
