"""The last prompts of decode workers: who computed them, why, and how that went."""

from __future__ import annotations

from itertools import islice

from dynamo.frontend.fleet.merge_patch import Document
from dynamo.handoff.router.recent import HandoffView
from dynamo.serving.served_model import ServedModel

MOST_HANDOFFS = 16
"""Of each model."""


def handoff_rows(served: list[ServedModel]) -> Document:
    return {
        f"{handoff.time:.6f}/{handoff.request_id}": _row(handoff, model.name)
        for model in served
        if model.handoffs
        for handoff in islice(reversed(model.handoffs.recent), MOST_HANDOFFS)
    }


def split_counts(model: ServedModel) -> Document:
    """Since the start: `split` and `local` prompts, by reason."""
    counts: Document = {}
    for (remote, reason), count in (model.handoffs.stats.decisions if model.handoffs else {}).items():
        counts.setdefault("split" if remote else "local", {})[reason] = count
    return counts


def _row(handoff: HandoffView, model: str) -> Document:
    row: Document = {
        "time": round(handoff.time, 3),
        "request_id": handoff.request_id,
        "model": model,
        "decode": str(handoff.decode_id),
        "prompt_tokens": handoff.prompt_tokens,
        "uncached_tokens": handoff.uncached_tokens,
        "reason": handoff.reason,
        "stage": handoff.stage.value,
    }
    if handoff.prefill_id is not None:
        row["prefill"] = str(handoff.prefill_id)
    if handoff.prefill_seconds is not None:
        row["prefill_ms"] = round(handoff.prefill_seconds * 1000, 1)
    if handoff.handoff_seconds is not None:
        row["handoff_ms"] = round(handoff.handoff_seconds * 1000, 1)
    return row
