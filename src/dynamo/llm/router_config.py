"""`RouterConfig`: how a frontend that a program starts chooses workers."""

from __future__ import annotations

import enum

from msgspec import structs

from dynamo.llm.kv_router import KvRouterConfig
from dynamo.router.config import RoutingConfig


class RouterMode(enum.Enum):
    RoundRobin = "round-robin"
    Random = "random"
    PowerOfTwoChoices = "power-of-two"
    KV = "kv"
    Direct = "direct"
    LeastLoaded = "least-loaded"
    DeviceAwareWeighted = "device-aware-weighted"


_MODES: dict[RouterMode, str] = {
    RouterMode.RoundRobin: "round-robin",
    RouterMode.Random: "random",
    RouterMode.PowerOfTwoChoices: "power-of-two",
    RouterMode.KV: "kv",
    RouterMode.Direct: "direct",
    RouterMode.LeastLoaded: "least-loaded",
}


class RouterConfig:
    def __init__(
        self,
        mode: RouterMode,
        config: KvRouterConfig | None = None,
        active_decode_blocks_threshold: float | None = None,
        active_prefill_tokens_threshold: int | None = None,
        active_prefill_tokens_threshold_frac: float | None = None,
        enforce_disagg: bool = False,
        session_affinity_ttl_secs: int | None = None,
    ) -> None:
        del enforce_disagg  # accepted and without meaning, in ai-dynamo too
        if mode not in _MODES:
            raise ValueError(f"RouterMode.{mode.name} is not there; choose another mode")
        self.router_mode = mode
        self.kv_router_config = config or KvRouterConfig()
        self._more = {
            "session_affinity_ttl_secs": session_affinity_ttl_secs,
            "active_decode_blocks_threshold": active_decode_blocks_threshold,
            "active_prefill_tokens_threshold": active_prefill_tokens_threshold,
            "active_prefill_tokens_threshold_frac": active_prefill_tokens_threshold_frac,
        }

    def settings(self) -> RoutingConfig:
        """The same as the settings of our router."""
        given = {name: value for name, value in self._more.items() if value is not None}
        return structs.replace(self.kv_router_config.router_config(), mode=_MODES[self.router_mode], **given)
