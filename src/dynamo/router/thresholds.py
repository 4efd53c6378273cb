"""The load beyond which a worker is busy and gets no more requests."""

from __future__ import annotations

import math

from msgspec import Struct

from dynamo.kv.messages import ActiveLoad
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.errors import InvalidArgument


class Thresholds(Struct, frozen=True, kw_only=True):
    """None means never."""

    active_decode_blocks_threshold: float | None = None
    """Share of the worker's blocks in use."""
    active_prefill_tokens_threshold: int | None = None
    """Prompt tokens waiting."""
    active_prefill_tokens_threshold_frac: float | None = None
    """Prompt tokens waiting, in batches of the worker."""

    def __post_init__(self) -> None:
        share = self.active_decode_blocks_threshold
        if share is not None and not 0 <= share <= 1:
            raise InvalidArgument(f"active_decode_blocks_threshold must be 0..1, not {share}")
        for name in ("active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidArgument(f"{name} must be a finite number of at least 0, not {value}")

    def __bool__(self) -> bool:
        return not (
            self.active_decode_blocks_threshold is None
            and self.active_prefill_tokens_threshold is None
            and self.active_prefill_tokens_threshold_frac is None
        )

    def busy(
        self, card: ModelRuntimeConfig, reported: ActiveLoad, prefill_tokens: float = 0.0, used_blocks: float = 0.0
    ) -> bool:
        """Whether a rank is beyond any threshold, by its report or by our reservations, whichever is more.

        A share of an unknown total is never exceeded.
        """
        tokens, batches = self.active_prefill_tokens_threshold, self.active_prefill_tokens_threshold_frac
        if tokens is not None or batches is not None:
            waiting, batch = max(prefill_tokens, reported.active_prefill_tokens or 0), card.max_num_batched_tokens
            if tokens is not None and waiting > tokens:
                return True
            if batches is not None and batch and waiting > batches * batch:
                return True
        share = self.active_decode_blocks_threshold
        if share is None:
            return False
        total = reported.kv_total_blocks or card.total_kv_blocks
        return bool(total) and max(used_blocks, reported.used_blocks) > share * (total or 0)
