"""When a prefill worker computes a prompt. `dynamo.handoff.router.rule` has the behaviour."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

HandoffPolicyName = Literal["measured", "isl_bounding", "prefill_load", "isl_or_load", "always", "never"]


class HandoffConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy. All but `measured`, `always` and `never` are ai-dynamo's, with its thresholds."""

    policy: HandoffPolicyName = "measured"
    eff_isl_threshold: Annotated[int, Meta(ge=0)] = 2048
    eff_isl_ratio_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7
    prefill_busy_threshold: Annotated[float, Meta(ge=0)] | None = None
    """Batches of prompt tokens waiting at the prefill worker."""
    decode_busy_threshold: Annotated[float, Meta(ge=0)] | None = None
    """Batches of prompt tokens waiting at the decode worker: above it, the prompt is not computed there."""

    @classmethod
    def from_json(cls, text: str) -> HandoffConfig:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"a JSON object with policy and thresholds ({error})") from None
