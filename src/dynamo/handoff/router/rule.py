"""When to split: a pure function of the prompt, what is cached, what waits, and what was measured."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dynamo.handoff.router.costs import HandoffCosts
from dynamo.settings.router import HandoffConfig


class HandoffCase(Struct, frozen=True, kw_only=True):
    """One request and the two workers it would use."""

    prompt_tokens: int
    cached_tokens: int = 0
    """The tokens that the decode worker has cached."""
    prefill_waiting: int = 0
    """Prompt tokens that wait or are computed at the least loaded prefill worker."""
    decode_waiting: int = 0
    """Prompt tokens that wait or are computed at the decode worker."""
    batch_tokens: int = 8192
    block_size: int = 1
    """Computed prompts are handed over in full blocks."""
    partners: int = 1
    """Prefill workers that can hand over to this decode worker now."""
    pinned: bool = False
    """The client named the prefill worker."""
    needed: bool = False
    """The decode worker computes no prompts."""
    measuring: bool = False
    """Another request is being split to measure the costs."""


class HandoffVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether another worker computes the prompt, and why."""

    remote: bool
    reason: str
    uncached_tokens: int = 0
    prefill_seconds: float | None = None
    """The expected time to compute the uncached tokens."""
    handoff_seconds: float | None = None
    """The expected time of the transfer and the extra hop."""

    def notes(self) -> dict[str, Any]:
        notes: dict[str, Any] = msgspec.to_builtins(self)
        return notes


def decide(view: HandoffCase, costs: HandoffCosts, config: HandoffConfig, now: float) -> HandoffVerdict:
    uncached = max(0, view.prompt_tokens - view.cached_tokens)
    prefill, transfer = costs.prefill.seconds(uncached), costs.transfer.seconds(view.prompt_tokens)

    def verdict(remote: bool, reason: str) -> HandoffVerdict:
        return HandoffVerdict(
            remote=remote, reason=reason, uncached_tokens=uncached, prefill_seconds=prefill, handoff_seconds=transfer
        )

    if not view.partners:
        return verdict(False, "no_prefill")
    if view.pinned:
        return verdict(True, "pinned")
    if view.needed:
        return verdict(True, "needed")
    if config.policy == "never":
        return verdict(False, "never")
    if uncached < view.block_size:
        return verdict(False, "short" if view.prompt_tokens < view.block_size else "cached")
    if config.policy == "always":
        return verdict(True, "always")
    if config.policy != "measured":
        return verdict(*_by_thresholds(view, uncached, config))
    known = costs.known(view.prompt_tokens, uncached)
    # Behind other prompts, a prefill would be measured with them.
    if not view.measuring and not view.prefill_waiting and not (known and costs.fresh(now)):
        return verdict(True, "measuring")
    if not known or prefill is None or transfer is None:
        return verdict(False, "unmeasured")
    if prefill <= transfer:
        whole = costs.prefill.seconds(view.prompt_tokens)
        return verdict(False, "cached" if whole is not None and whole > transfer else "short")
    # If the decode workers compute the prompts with most of the tokens, running answers wait for those anyway: to hand
    # over the others would only delay them.
    typical = costs.mix.typical() or (view.prompt_tokens, uncached)
    if not costs.known(*typical):
        return verdict(False, "unmeasured")
    if costs.gain(*typical) <= 0:
        return verdict(False, "slow")
    # Computed at the decode worker before the prefill worker could begin: splitting would only delay it.
    waiting = costs.prefill.seconds(view.prefill_waiting) if view.prefill_waiting else 0.0
    here = costs.prefill.seconds(view.decode_waiting + uncached)
    if waiting and here is not None and waiting > here:
        return verdict(False, "busy")
    return verdict(True, "worth")


def _by_thresholds(view: HandoffCase, uncached: int, config: HandoffConfig) -> tuple[bool, str]:
    limit = config.decode_busy_threshold
    if limit is not None and view.decode_waiting > limit * view.batch_tokens:
        return True, "decode_busy"
    if config.policy != "prefill_load":
        few = uncached < config.eff_isl_threshold
        if few and view.prompt_tokens and uncached / view.prompt_tokens < config.eff_isl_ratio_threshold:
            return False, "cached" if view.cached_tokens else "short"
    if config.policy != "isl_bounding":
        limit = config.prefill_busy_threshold
        if limit is not None and view.prefill_waiting > limit * view.batch_tokens:
            return False, "busy"
    return True, "threshold"
