"""The rows of the fleet's document: its workers, and their last hand-offs."""

from __future__ import annotations

from itertools import islice

from dynamo.frontend.fleet import Document
from dynamo.frontend.measure.worker_metrics import LastRequests
from dynamo.handoff.router.recent import HandoffView
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.card import ModelCard
from dynamo.protocols.engine import Tenant
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.service import OUTPUT, PROMPT
from dynamo.router.placement import RankStatus, TierStatus
from dynamo.runtime.membership import Member
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel

LONGEST_NAME = 200
"""Characters of a name or an error that are shown."""
MOST_KEYS = 32
"""API keys shown of each model, those that wait first."""
SHORT_NAME = 8
"""Characters of a key's name that are shown: the start of its digest."""
MOST_HANDOFFS = 16
"""Hand-offs shown of each model."""


class WorkerRows:
    """One row per rank, with its load, health, tiers and version.

    What does not change of a worker is kept: with hundreds of them, making it anew costs more than all else.
    """

    def __init__(self, models: Models, last_requests: LastRequests) -> None:
        self._models = models
        self._last_requests = last_requests
        self._about: dict[int, tuple[Member, str, Document]] = {}
        """By the identity of the member: the start of its rows' keys, and what does not change."""

    def forget(self) -> None:
        self._about = {}

    def rows(self, served: list[ServedModel]) -> Document:
        statuses: dict[tuple[str, int], list[RankStatus]] = {}
        for model in served:
            prefill = model.handoffs.pool.router if model.handoffs else None
            for status in [*model.router.status(), *(prefill.status() if prefill else ())]:
                statuses.setdefault((model.name, status.worker.worker_id), []).append(status)
        before, self._about = self._about, {}
        rows: Document = {}
        for member in self._models.workers():
            assert member.card
            known = before.get(id(member))
            if known is None or known[0] is not member:
                known = (member, f"{member.endpoint.path}/{member.instance_id}/", about_worker(member, member.card))
            self._about[id(member)] = known
            _, key, about = known
            health = self._models.health(member)
            ranks = statuses.get((member.card.name, member.instance_id))
            for status in ranks or (RankStatus(WorkerRank(member.instance_id), 0),):
                # A process may serve several endpoints under one id.
                rows[f"{key}{status.worker.dp_rank}"] = {**about, "health": health, **self._load(status)}
        return rows

    def _load(self, status: RankStatus) -> Document:
        worker = status.worker
        row: Document = {"rank": worker.dp_rank, "requests": status.requests}
        if status.active_blocks is not None:
            row["active_blocks"] = status.active_blocks
        if status.prefill_tokens is not None:
            row["prefill_tokens"] = status.prefill_tokens
        if status.cached_blocks is not None:
            row["cached_blocks"] = status.cached_blocks
        if status.acceptance is not None:
            row["draft_acceptance"] = round(status.acceptance, 3)
        last = self._last_requests.get(worker)
        if last is None and not worker.dp_rank:
            last = self._last_requests.get((worker.worker_id, None))
        if last is not None:
            row["ttft_ms"] = round(last.time_to_first_token_seconds * 1000, 1)
            row["itl_ms"] = round(last.inter_token_latency_seconds * 1000, 2)
        if status.tiers:
            row["tiers"] = {one.tier.value: _tier(one) for one in status.tiers}
        return row


def about_worker(member: Member, card: ModelCard) -> Document:
    runtime, instance = card.runtime_config, member.instance
    about = {
        "worker_id": str(member.instance_id),
        "name": worker_name(member.instance_id),
        "model": card.name[:LONGEST_NAME],
        "endpoint": member.endpoint.path,
        "role": card.worker_type.value,
        "address": (instance.address or None) if instance else None,
        "device": instance.device_type if instance else None,
        "version": instance.version[:LONGEST_NAME] if instance and instance.version else None,
        "host": instance.host[:LONGEST_NAME] if instance and instance.host else None,
        "pid": instance.pid if instance else None,
        "started": instance.started if instance else None,
        "gpus": instance.gpus[:LONGEST_NAME] if instance and instance.gpus else None,
        "engine": instance.engine[:LONGEST_NAME] if instance and instance.engine else None,
        "base_model": card.lora.base_model if card.lora else None,
        "total_blocks": runtime.total_kv_blocks,
        "max_requests": runtime.max_num_seqs,
    }
    return {name: value for name, value in about.items() if value is not None}


def _tier(status: TierStatus) -> Document:
    report = status.report
    if report is None:
        return {"blocks": status.blocks}
    return {
        "blocks": status.blocks,
        "bytes": report.bytes,
        "limit_bytes": report.limit_bytes,
        "used": report.used,
        "hits": report.hits,
        "misses": report.misses,
        "restored_tokens": report.restored_tokens,
        "saved_seconds": report.saved_seconds,
    }


def handoff_rows(served: list[ServedModel]) -> Document:
    """The last prompts of decode workers: who computed them, why, and how that went."""
    return {
        f"{handoff.time:.6f}/{handoff.request_id}": _handoff(handoff, model.name)
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


def fairness_row(model: ServedModel, cards: list[ModelCard]) -> Document:
    """How far apart the keys that wait are served, the bound of that, and what each had; empty without several keys.

    The bound is that of the virtual token counter, by the sizes on the workers' cards: `2·max(w_p·L, w_q·M)`.
    """
    queue = model.router.queue
    standings = [one for one in queue.waiting.standings() if one[0][0]]
    if len(standings) < 2:
        return {}
    row: Document = {
        "gap": round(queue.waiting.gap()),
        "keys": {
            f"{name[:SHORT_NAME]}{' (batch)' if background else ''}": {
                "service": round(counter),
                "waiting": waiting,
                "running": queue.ledger.running(Tenant(name, background=background)),
            }
            for (name, background), counter, waiting in standings[:MOST_KEYS]
        },
    }
    sizes = [card.runtime_config for card in cards]
    blocks = sum((size.total_kv_blocks or 0) * max(1, size.data_parallel_size) for size in sizes)
    if blocks and model.card.context_length:
        batches = blocks * model.card.kv_cache_block_size
        row["bound"] = round(2 * max(PROMPT * model.card.context_length, OUTPUT * batches))
    return row


def _handoff(handoff: HandoffView, model: str) -> Document:
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
