"""The planner's configuration: ai-dynamo's names where the meaning is the same. Wrong keys and values are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from dynamo.protocols.errors import StartError
from dynamo.settings import Setting, Settings, nearest, read
from dynamo.settings.frontend import FrontendSettings

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Least = Annotated[int, Meta(ge=1, le=1_000_000)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(gt=0, le=1)]
Role = Literal["prefill", "decode"]

SCALING = "scaling"
DEMAND = "demand and capacity"
METRICS = "metrics"
WORKERS = "workers"

_FRONTEND = FrontendSettings()
FRONTEND_URL = f"http://{_FRONTEND.host}:{_FRONTEND.port}"
"""Where a frontend with defaults listens."""

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
"""Keys of ai-dynamo's planner that this one rejects, with the reason."""


class PlannerConfigError(StartError):
    """The message names the key and what is expected there."""


class PlannerConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the file is also a flag, `--ttft-ms`, and a variable, named after this process."""

    EVERY: ClassVar[str] = "planner"

    # fmt: off
    environment: Annotated[Literal["local", "virtual", "kubernetes"], Setting(
        help="who starts and drains workers: this process, a program that follows keys in etcd, or Kubernetes",
        )] = "local"
    mode: Annotated[Literal["agg", "disagg", "prefill", "decode"], Setting(help="which workers are planned")] = "agg"
    optimization_target: Annotated[Literal["throughput", "latency", "load", "sla"], Setting(
        help="what a decision is for")] = "throughput"
    backend: Annotated[str, Setting(
        help="accepted, and not used: the metrics of all engines have the same names")] = "vllm"
    namespace: Annotated[str, Setting(help="Dynamo's, of the keys in etcd; not that of Kubernetes")] = "dynamo"

    load_adjustment_interval_seconds: Annotated[Positive, Setting(
        help="time between two decisions", group=SCALING)] = 5.0
    throughput_adjustment_interval_seconds: Annotated[Positive, Setting(
        help="a scale-down needs that the whole of this time had too many workers", group=SCALING)] = 180.0
    max_gpu_budget: Annotated[Count, Setting(help="GPUs of all workers, at most", group=SCALING)] = 8
    min_gpu_budget: Annotated[int, Meta(ge=-1, le=1_000_000), Setting(
        help="GPUs of all workers, at least; -1: no lower bound", group=SCALING)] = -1
    min_endpoint: Annotated[Count, Setting(
        help="workers of a kind that always run; with 0 none run while there are no requests", group=SCALING)] = 1
    scale_to_zero_seconds: Annotated[Positive, Setting(
        help="time without requests after which a kind whose minimum is 0 has no workers", group=SCALING)] = 300.0
    prefill_min_endpoint: Annotated[Count | None, Setting(
        help="prefill workers that always run", group=SCALING, default="min_endpoint")] = None
    decode_min_endpoint: Annotated[Count | None, Setting(
        help="decode workers that always run", group=SCALING, default="min_endpoint")] = None
    prefill_engine_num_gpu: Annotated[int, Meta(ge=1, le=100_000), Setting(
        help="GPUs of a prefill worker", group=SCALING)] = 1
    decode_engine_num_gpu: Annotated[int, Meta(ge=1, le=100_000), Setting(
        help="GPUs of a decode worker", group=SCALING)] = 1
    scale_up_step: Annotated[Least, Setting(
        help="workers of one kind that one decision adds at most", group=SCALING)] = 4
    scale_down_step: Annotated[Least, Setting(
        help="workers of one kind that one decision takes away at most", group=SCALING)] = 1
    manual_hold_seconds: Annotated[float, Meta(ge=0, le=1e9), Setting(
        help="how long the number of workers stays after someone else changed it", group=SCALING)] = 300.0

    ttft_ms: Annotated[Positive, Setting(help="target of sla: time to the first token", group=DEMAND)] = 500.0
    itl_ms: Annotated[Positive, Setting(help="target of sla: time between tokens", group=DEMAND)] = 50.0
    load_predictor: Annotated[Literal["constant", "arima", "kalman"], Setting(
        help="how demand is predicted", group=DEMAND)] = "arima"
    kalman_q_level: Annotated[Positive, Setting(help="kalman: how much the level changes", group=DEMAND)] = 1.0
    kalman_q_trend: Annotated[Positive, Setting(help="kalman: how much the trend changes", group=DEMAND)] = 0.1
    kalman_r: Annotated[Positive, Setting(help="kalman: how much a measurement errs", group=DEMAND)] = 10.0
    kalman_min_points: Annotated[int, Meta(ge=1, le=10_000), Setting(
        help="kalman: observations before it predicts", group=DEMAND)] = 5
    startup_seconds: Annotated[float, Meta(ge=0, le=1e6), Setting(
        help="what a worker takes to start: demand is predicted this far ahead", group=DEMAND)] = 30.0
    load_min_observations: Annotated[int, Meta(ge=1, le=10_000), Setting(
        help="observations before the capacity of a worker is estimated", group=DEMAND)] = 5
    load_scaling_down_sensitivity: Annotated[float, Meta(gt=0, le=100), Setting(
        help="per cent of their capacity up to which the remaining workers may be used after a scale-down",
        group=DEMAND)] = 95.0
    capacity_samples: Annotated[int, Meta(ge=2, le=100_000), Setting(
        help="observations from which the capacity of a worker is estimated, at most", group=DEMAND)] = 360
    prefill_scale_up_queue_tokens: Annotated[Annotated[float, Meta(gt=0)] | None, Setting(
        help="prompt tokens per worker without a first output that ask for more workers", group=DEMAND,
        default="a share of the context length")] = None
    prefill_scale_down_queue_tokens: Annotated[Annotated[float, Meta(ge=0)] | None, Setting(
        help="such tokens below which there are too many workers", group=DEMAND,
        default="a share of the context length")] = None
    decode_scale_up_kv_rate: Annotated[Share | None, Setting(
        help="share of the KV blocks in use that asks for more workers", group=DEMAND)] = None
    decode_scale_down_kv_rate: Annotated[Share | None, Setting(
        help="share of the KV blocks in use below which there are too many workers", group=DEMAND)] = None

    advisory: Annotated[bool, Setting(help="only say what would be done")] = False
    frontend_url: Annotated[str, Setting(help="whose metrics are read", metavar="URL", group=METRICS)] = FRONTEND_URL
    model: Annotated[str | None, Setting(
        help="only this model's metrics", group=METRICS, default="all models")] = None
    metric_pulling_prometheus_endpoint: Annotated[str | None, Setting(
        help="read the metrics from this Prometheus instead of the frontend", metavar="URL", group=METRICS)] = None
    metric_reporting_prometheus_port: Annotated[Annotated[int, Meta(ge=0, le=65535)] | None, Setting(
        help="serve dynamo_planner_* here, at /metrics; 0 takes a free port", metavar="PORT", group=METRICS)] = None
    metric_reporting_host: Annotated[str | None, Setting(
        help="address of that port", metavar="ADDRESS", group=METRICS, default="127.0.0.1; in a pod 0.0.0.0")] = None
    deployment: Annotated[str | None, Setting(
        help="local: the file of `dynamo serve` whose components are started and scaled", metavar="FILE",
        group=WORKERS)] = None
    prefill_component: Annotated[str, Setting(
        help="as decode_component, of prefill workers", group=WORKERS)] = "prefill"
    decode_component: Annotated[str, Setting(
        help="local: a component of deployment; kubernetes: a Deployment, KIND/NAME or a service of graph_deployment",
        group=WORKERS)] = "worker"
    kubernetes_namespace: Annotated[str | None, Setting(
        help="where the workloads are", group=WORKERS, default="that of the pod or of the kubeconfig")] = None
    graph_deployment: Annotated[str | None, Setting(
        help="the DynamoGraphDeployment whose services are scaled", group=WORKERS)] = None
    # fmt: on

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

    def least_in_use(self, role: Role) -> int:
        """The fewest workers while there are requests."""
        return max(1, self.minimum(role))

    def gpus(self, role: Role) -> int:
        return self.prefill_engine_num_gpu if role == "prefill" else self.decode_engine_num_gpu

    def component(self, role: Role) -> str:
        return self.prefill_component if role == "prefill" else self.decode_component


def read_config(source: str | None, environ: Mapping[str, str] = {}, flags: Mapping[str, Any] = {}) -> PlannerConfig:
    """Read flags, variables, and JSON given as it is or a file with JSON or YAML."""
    asked = read(PlannerConfig, environ, flags)
    if source is None:
        return make_config(asked, "the planner's settings")
    if source.lstrip().startswith("{"):
        return parse_config(source, "--config", asked)
    try:
        return parse_config(Path(source).expanduser().read_bytes(), source, asked)
    except OSError as error:
        raise PlannerConfigError(f"{source}: {error.strerror or error}") from error


def parse_config(text: bytes | str, file: str = "--config", asked: Mapping[str, Any] = {}) -> PlannerConfig:
    """Read a configuration; what was `asked` besides beats the text."""
    import yaml

    try:
        given = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise PlannerConfigError(f"{file}: is neither JSON nor YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise PlannerConfigError(f"{file}: must hold names and their values")
    return make_config({**given, **asked}, file)


def make_config(given: Mapping[Any, Any], file: str) -> PlannerConfig:
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
    _reject_conflicts(config, file)
    return config


def _reject_conflicts(config: PlannerConfig, file: str) -> None:
    least = sum(config.least_in_use(role) * config.gpus(role) for role in config.roles)
    if least > config.max_gpu_budget:
        shown = " and ".join(f"{config.least_in_use(role)} {role} workers" for role in config.roles)
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
