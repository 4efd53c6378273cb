"""How workers are chosen: flag, else environment, else default; read once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument
from dynamo.router.kv.choice.cost import CostConfig
from dynamo.router.policy import POLICIES
from dynamo.router.thresholds import Thresholds

MODES = (*POLICIES, "kv")
QUEUE_POLICIES = ("fcfs", "wspt")


def boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError("true or false")
    return word in ("1", "true", "yes", "on")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def optional(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The word None takes back what was set elsewhere."""

    def read_or_none(text: str) -> Any:
        return UNSET if text.strip().lower() == "none" else read(text)

    return read_or_none


class _Unset:
    """A setting that was given as None, which is not the same as one that was not given."""

    def __bool__(self) -> bool:
        return False


UNSET = _Unset()


class Setting(Struct, frozen=True):
    """One field, the flag and the environment variables that set it (the first of them that is there counts)."""

    field: str
    flag: str
    variables: tuple[str, ...]
    read: Callable[[str], Any]
    help: str
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As a keyword of `from_env`, and in a model card."""
        return self.flag.removeprefix("--").replace("-", "_")


SETTINGS = (
    Setting("mode", "--router-mode", ("DYN_ROUTER_MODE",), str, f"how workers are chosen: {', '.join(MODES)}"),
    Setting(
        "overlap_weight",
        "--kv-overlap-score-weight",
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_KV_OVERLAP_SCORE_WEIGHT"),
        number,
        "how much a cached prefix counts; 0 looks at load alone (1)",
        ("--router-kv-overlap-score-credit", "--router-kv-overlap-score-weight"),
    ),
    Setting(
        "temperature",
        "--router-temperature",
        ("DYN_ROUTER_TEMPERATURE",),
        number,
        "0 takes the cheapest worker, above it cheaper ones are likelier (0)",
    ),
    Setting(
        "host_weight",
        "--router-host-cache-hit-weight",
        ("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",),
        number,
        "what a block in host memory is worth, 0..1 (0.75)",
    ),
    Setting(
        "disk_weight",
        "--router-disk-cache-hit-weight",
        ("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",),
        number,
        "what a block on disk is worth, 0..1 (0.25)",
    ),
    Setting(
        "use_kv_events",
        "--use-kv-events",
        ("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"),
        boolean,
        "learn from the workers' events what they cache; otherwise from what was sent to them (true)",
    ),
    Setting(
        "ttl",
        "--router-ttl-secs",
        ("DYN_ROUTER_TTL_SECS",),
        number,
        "without events: how long a prompt is taken to stay cached (120)",
    ),
    Setting(
        "replica_sync",
        "--router-replica-sync",
        ("DYN_ROUTER_REPLICA_SYNC",),
        boolean,
        "tell other frontends what is sent where (false)",
    ),
    Setting(
        "copy_prefixes",
        "--router-copy-prefixes",
        ("DYN_ROUTER_COPY_PREFIXES",),
        boolean,
        "kv, with events: idle workers compute ahead what many running requests begin with (true)",
    ),
    Setting(
        "active_decode_blocks_threshold",
        "--active-decode-blocks-threshold",
        ("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",),
        optional(number),
        "a worker with more than this share of its blocks in use is busy, 0..1 (none)",
    ),
    Setting(
        "active_prefill_tokens_threshold",
        "--active-prefill-tokens-threshold",
        ("DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",),
        optional(whole),
        "a worker with more prompt tokens waiting is busy (none)",
    ),
    Setting(
        "active_prefill_tokens_threshold_frac",
        "--active-prefill-tokens-threshold-frac",
        ("DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",),
        optional(number),
        "the same, in batches (max_num_batched_tokens) of the worker (none)",
    ),
    Setting(
        "queue_threshold",
        "--router-queue-threshold",
        ("DYN_ROUTER_QUEUE_THRESHOLD",),
        optional(number),
        "kv: requests wait here while every worker has more than so many batches of prompt waiting (none)",
    ),
    Setting(
        "queue_policy",
        "--router-queue-policy",
        ("DYN_ROUTER_QUEUE_POLICY",),
        str,
        "who goes first among equal priorities: fcfs (first come) or wspt (shortest prompt by priority) (fcfs)",
    ),
    Setting(
        "queue_limit",
        "--router-queue-limit",
        ("DYN_ROUTER_QUEUE_LIMIT",),
        whole,
        "requests that may wait here per worker; further ones are refused (256)",
    ),
)
_FLAGS = {setting.field: setting.flag for setting in SETTINGS}


class RouterConfig(Struct, frozen=True, kw_only=True):
    mode: str = "round-robin"
    overlap_weight: float = 1.0
    temperature: float = 0.0
    host_weight: float = 0.75
    disk_weight: float = 0.25
    use_kv_events: bool = True
    ttl: float = 120.0
    replica_sync: bool = False
    copy_prefixes: bool = True
    active_decode_blocks_threshold: float | None = None
    active_prefill_tokens_threshold: int | None = None
    active_prefill_tokens_threshold_frac: float | None = None
    queue_threshold: float | None = None
    queue_policy: str = "fcfs"
    queue_limit: int = 256

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"--router-mode must be one of {', '.join(MODES)}, not '{self.mode}'")
        if self.queue_policy not in QUEUE_POLICIES:
            raise ValueError(f"--router-queue-policy must be one of {', '.join(QUEUE_POLICIES)}, "
                             f"not '{self.queue_policy}'")  # fmt: skip
        for field in ("overlap_weight", "temperature", "queue_threshold"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{_FLAGS[field]} must be a finite number of at least 0, not {value}")
        for field in ("host_weight", "disk_weight"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"{_FLAGS[field]} must be 0..1, not {getattr(self, field)}")
        if not 0 < self.ttl < 1e9:
            raise ValueError(f"--router-ttl-secs must be a number of seconds above 0, not {self.ttl}")
        if self.queue_limit < 1:
            raise ValueError(f"--router-queue-limit must be at least 1, not {self.queue_limit}")
        try:
            self.thresholds()
        except InvalidArgument as error:
            raise ValueError(f"--{error.message.replace('_', '-')}") from None

    @property
    def cost(self) -> CostConfig:
        return CostConfig(
            overlap_weight=self.overlap_weight,
            temperature=self.temperature,
            host_weight=self.host_weight,
            disk_weight=self.disk_weight,
            external_weight=self.disk_weight,
        )

    def thresholds(self) -> Thresholds:
        return Thresholds(
            active_decode_blocks_threshold=self.active_decode_blocks_threshold,
            active_prefill_tokens_threshold=self.active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac=self.active_prefill_tokens_threshold_frac,
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: Any) -> RouterConfig:
        """`flags` go by their names (`router_mode`, `kv_overlap_score_weight` …); None is one that was not given."""
        given = dict(flags)
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            value = given.pop(setting.name, None)
            if value is None:
                value = _from_variables(setting, environ)
            if value is not None:
                values[setting.field] = None if value is UNSET else value
        if given:
            raise TypeError(f"no such router flag: {', '.join(given)}")
        return cls(**values)

    @classmethod
    def from_card(cls, told: object) -> RouterConfig:
        """What a worker asks for its own model, by the names of the flags; a ValueError says what is wrong with it."""
        if not isinstance(told, Mapping):
            raise ValueError(f"router_config must be an object, not {type(told).__name__}")
        values: dict[str, Any] = {}
        by_name = {setting.name: setting for setting in SETTINGS}
        for name, value in told.items():
            setting = by_name.get(name)
            if setting is None:
                raise ValueError(f"router_config has no '{name}'; it knows {', '.join(by_name)}")
            if value is not None:
                values[setting.field] = _read(setting, f"router_config.{name}", str(value))
                if values[setting.field] is UNSET:
                    values[setting.field] = None
        return cls(**values)


def _from_variables(setting: Setting, environ: Mapping[str, str]) -> Any:
    for variable in setting.variables:
        text = environ.get(variable, "").strip()
        if text:
            return _read(setting, variable, text)
    return None


def _read(setting: Setting, source: str, text: str) -> Any:
    try:
        return setting.read(text)
    except ValueError as error:
        raise ValueError(f"{source} must be {error}, not '{text}'") from None
