"""The planner's configuration: ai-dynamo's names where the meaning is the same. Wrong keys and values are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dynamo.protocols.errors import StartError
from dynamo.settings import nearest

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(gt=0, le=1)]
Role = Literal["prefill", "decode"]

NOT_SUPPORTED = {
    "enable_throughput_scaling": "demand and load are always both looked at",
    "enable_load_scaling": "demand and load are always both looked at",
    "prophet_window_size": "there is no predictor 'prophet'; use arima or kalman",
    "load_predictor_warmup_trace": "the predictors need no warm-up",
    "max_num_fpm_samples": "capacity is measured on live requests; see capacity_samples",
    "fpm_sample_bucket_size": "capacity is measured on live requests; see capacity_samples",
    "speculative_nextn": "capacity is measured on live requests",
    "control_api_port": "there is no control API",
    "live_dashboard_port": "there is no dashboard; see metric_reporting_prometheus_port",
    "throughput_metrics_source": "the metrics are the frontend's",
    "profile_results_dir": "capacity is measured on live requests",
}
"""Keys of ai-dynamo's planner that this one refuses, with the reason."""


class PlannerConfigError(StartError):
    """The message names the key and what is expected there."""


class PlannerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    environment: Literal["local", "virtual", "kubernetes"] = "local"
    """Who starts and drains workers: this process, a program that follows keys in etcd, or Kubernetes."""
    mode: Literal["agg", "disagg", "prefill", "decode"] = "agg"
    optimization_target: Literal["throughput", "latency", "load", "sla"] = "throughput"
    backend: str = "vllm"
    """Accepted, and not used: the metrics of all engines have the same names."""
    namespace: str = "dynamo"
    """Dynamo's, not that of Kubernetes."""

    load_adjustment_interval_seconds: Positive = 5.0
    """Between two decisions."""
    throughput_adjustment_interval_seconds: Positive = 180.0
    """A scale-down needs that the whole of this time had too many workers."""
    max_gpu_budget: Count = 8
    min_gpu_budget: Annotated[int, Meta(ge=-1, le=1_000_000)] = -1
    """-1: none."""
    min_endpoint: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    prefill_min_endpoint: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    decode_min_endpoint: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    prefill_engine_num_gpu: Annotated[int, Meta(ge=1, le=100_000)] = 1
    decode_engine_num_gpu: Annotated[int, Meta(ge=1, le=100_000)] = 1
    scale_up_step: Annotated[int, Meta(ge=1, le=1_000_000)] = 4
    """Workers of one kind that one decision adds at most."""
    scale_down_step: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Workers of one kind that one decision takes away at most."""
    manual_hold_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 300.0
    """After someone else changed the number of workers, it stays for this time."""

    ttft_ms: Positive = 500.0
    itl_ms: Positive = 50.0
    load_predictor: Literal["constant", "arima", "kalman"] = "arima"
    kalman_q_level: Positive = 1.0
    kalman_q_trend: Positive = 0.1
    kalman_r: Positive = 10.0
    kalman_min_points: Annotated[int, Meta(ge=1, le=10_000)] = 5
    startup_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 30.0
    """What a worker takes to start: demand is predicted this far ahead."""
    load_min_observations: Annotated[int, Meta(ge=1, le=10_000)] = 5
    load_scaling_down_sensitivity: Annotated[float, Meta(gt=0, le=100)] = 95.0
    """Per cent of their capacity up to which the remaining workers may be used after a scale-down."""
    capacity_samples: Annotated[int, Meta(ge=2, le=100_000)] = 360
    """Observations from which the capacity of a worker is estimated."""
    prefill_scale_up_queue_tokens: Annotated[float, Meta(gt=0)] | None = None
    prefill_scale_down_queue_tokens: Annotated[float, Meta(ge=0)] | None = None
    """Prompt tokens per worker without a first output; by default a share of the context length."""
    decode_scale_up_kv_rate: Share | None = None
    decode_scale_down_kv_rate: Share | None = None

    advisory: bool = False
    frontend_url: str = "http://127.0.0.1:8000"
    model: str | None = None
    """Only this model's metrics; without it those of all models."""
    metric_pulling_prometheus_endpoint: str | None = None
    """Read the metrics from this Prometheus instead of the frontend."""
    metric_reporting_prometheus_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    metric_reporting_host: str | None = None
    """Without one: loopback, in a pod all addresses."""
    deployment: str | None = None
    """The file of `dynamo serve` whose components are started and scaled (local)."""
    prefill_component: str = "prefill"
    decode_component: str = "worker"
    """A component of `deployment` (local); a Deployment, KIND/NAME or a service of `graph_deployment` (kubernetes)."""
    kubernetes_namespace: str | None = None
    """Of the workloads; without it that of the pod or of the kubeconfig."""
    graph_deployment: str | None = None
    """The DynamoGraphDeployment whose services are scaled (kubernetes)."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Workers of `agg` are counted as decode workers, as ai-dynamo does."""
        match self.mode:
            case "agg" | "decode":
                return ("decode",)
            case "prefill":
                return ("prefill",)
        return ("prefill", "decode")

    def minimum(self, role: Role) -> int:
        own = self.prefill_min_endpoint if role == "prefill" else self.decode_min_endpoint
        return self.min_endpoint if own is None else own

    def gpus(self, role: Role) -> int:
        return self.prefill_engine_num_gpu if role == "prefill" else self.decode_engine_num_gpu

    def component(self, role: Role) -> str:
        return self.prefill_component if role == "prefill" else self.decode_component


def read_config(source: str) -> PlannerConfig:
    """From JSON given as it is, or from a file with JSON or YAML."""
    if source.lstrip().startswith("{"):
        return parse_config(source, "--config")
    try:
        return parse_config(Path(source).expanduser().read_bytes(), source)
    except OSError as error:
        raise PlannerConfigError(f"{source}: {error.strerror or error}") from error


def parse_config(text: bytes | str, file: str = "--config") -> PlannerConfig:
    import yaml

    try:
        given = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise PlannerConfigError(f"{file}: is neither JSON nor YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise PlannerConfigError(f"{file}: must hold names and their values")
    return make_config(given, file)


def make_config(given: Mapping[Any, Any], file: str = "--config") -> PlannerConfig:
    known = PlannerConfig.__struct_fields__
    for key in given:
        if key in NOT_SUPPORTED:
            raise PlannerConfigError(f"{file}: {key}: is not supported: {NOT_SUPPORTED[key]}")
        if key not in known:
            raise PlannerConfigError(f"{file}: unknown key '{key}'{nearest(str(key), known)}")
    try:
        config = msgspec.convert(given, PlannerConfig)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise PlannerConfigError(f"{file}: {place.rstrip('`')}: {what}") from None
    _refuse_conflicts(config, file)
    return config


def _refuse_conflicts(config: PlannerConfig, file: str) -> None:
    least = sum(config.minimum(role) * config.gpus(role) for role in config.roles)
    if least > config.max_gpu_budget:
        shown = " and ".join(f"{config.minimum(role)} {role} workers" for role in config.roles)
        raise PlannerConfigError(
            f"{file}: max_gpu_budget: is {config.max_gpu_budget}, but the minimum of {shown} needs {least} GPUs"
        )
    if config.min_gpu_budget > config.max_gpu_budget:
        raise PlannerConfigError(
            f"{file}: min_gpu_budget: {config.min_gpu_budget} is more than max_gpu_budget {config.max_gpu_budget}"
        )
    for low, high in (
        ("prefill_scale_down_queue_tokens", "prefill_scale_up_queue_tokens"),
        ("decode_scale_down_kv_rate", "decode_scale_up_kv_rate"),
    ):
        down, up = getattr(config, low), getattr(config, high)
        if down is not None and up is not None and down >= up:
            raise PlannerConfigError(f"{file}: {low}: {down:g} must be less than {high} {up:g}")
    if config.environment == "local" and not config.deployment:
        raise PlannerConfigError(
            f"{file}: deployment: environment local needs the file of `dynamo serve` whose workers are scaled"
        )
