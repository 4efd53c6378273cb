"""How workers are chosen."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from dynamo.process.backoff import Backoff, LimitedBackoff
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.loaded_rule import load, shipped
from dynamo.router.sessions.affinity import Affinity
from dynamo.router.stream_watch import StallLimits, StreamWatch
from dynamo.router.thresholds import Thresholds
from dynamo.settings import read
from dynamo.settings.router import HandoffConfig, RouterSettings

LONGEST_PAUSE_SECONDS = 2.0


class RequestBackoff(LimitedBackoff):
    """The pauses of a request that waits for an instance."""

    def __init__(
        self,
        limit: float = 30.0,
        *,
        first: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(Backoff(first, LONGEST_PAUSE_SECONDS, jitter=jitter), limit, clock)


class RoutingConfig(RouterSettings, frozen=True, kw_only=True):
    def __post_init__(self) -> None:
        if self.rule is not None:
            try:
                load(self.rule)  # at start, and not with the first model
            except InvalidArgument as error:
                raise ValueError(f"--router-rule: {error.message}") from None

    @property
    def cost(self) -> CostConfig:
        return CostConfig(
            overlap_weight=self.overlap_weight,
            temperature=self.temperature,
            host_weight=self.host_weight,
            disk_weight=self.disk_weight,
            external_weight=self.disk_weight,
        )

    def affinity(self) -> Affinity | None:
        """The bindings of one router's sessions; None where sessions keep to no worker."""
        ttl = self.session_affinity_ttl_secs
        return None if ttl is None else Affinity(ttl, hard=self.session_affinity_mode == "hard")

    def watch(self) -> StreamWatch:
        return StreamWatch(StallLimits(between=self.stream_stall_secs, first=self.first_token_stall_secs))

    def backoff(self) -> RequestBackoff:
        return RequestBackoff(self.migration_wait_secs)

    @property
    def handoff(self) -> HandoffConfig:
        """When a prefill worker computes the prompt."""
        if self.conditional_disagg_config is not None:
            return self.conditional_disagg_config
        return HandoffConfig(policy="isl_bounding") if self.conditional_disagg else HandoffConfig()

    def thresholds(self) -> Thresholds:
        return Thresholds(
            active_decode_blocks_threshold=self.active_decode_blocks_threshold,
            active_prefill_tokens_threshold=self.active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac=self.active_prefill_tokens_threshold_frac,
        )

    @classmethod
    def from_card(cls, wanted: object) -> RoutingConfig:
        """What a worker asks for its own model, by the names of the flags; a ValueError says what is wrong with it."""
        if not isinstance(wanted, Mapping):
            raise ValueError(f"router_config must be an object, not {type(wanted).__name__}")
        values = read(cls, {}, file=wanted, file_name="router_config")
        if (rule := values.get("rule")) is not None and rule not in shipped():
            raise ValueError(f"router_rule: a card may name {', '.join(shipped())}, and no file")
        return cls(**values)
