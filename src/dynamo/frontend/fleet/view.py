"""The state of the fleet as one JSON document: models, workers, running requests, decisions, hand-offs, migrations.

Every table is an object by key, and no value is null, so that changes can be sent as merge patches. Worker ids are
text: they have 64 bits, which browsers' numbers do not.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice, takewhile
from time import perf_counter
from typing import Any

from dynamo import __version__
from dynamo.frontend.fleet import Document
from dynamo.frontend.fleet.planner_feed import PlannerFeed
from dynamo.frontend.fleet.prefix_table import PrefixTable
from dynamo.frontend.fleet.recorder import FleetRecorder
from dynamo.frontend.fleet.rows import LONGEST_NAME, WorkerRows, fairness_row, handoff_rows, split_counts
from dynamo.frontend.fleet.session_rows import session_rows
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.frontend.measure.running import RunningRequests
from dynamo.frontend.measure.session_turns import LONGEST_SHOWN
from dynamo.frontend.measure.stages import DISPATCH
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.card import ModelCard
from dynamo.router.decision import Decision
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel

MOST_REQUESTS = 50
"""Running requests that are shown: the oldest."""
MOST_DECISIONS = 24
NEW_DECISIONS = 4
"""Decisions added at once. Under load only a sample is shown: nobody reads a thousand a second."""
MOST_CANDIDATES = 8
"""Candidates of a decision, the cheapest first."""


class FleetView:
    """Reads the state when asked, and does nothing in between. It remembers the decisions it has shown."""

    def __init__(
        self,
        models: Models,
        requests: RunningRequests,
        planners: PlannerFeed,
        prefixes: PrefixTable,
        recorder: FleetRecorder,
    ) -> None:
        self._recorder = recorder
        self._models = models
        self._requests = requests
        self._planners = planners
        self._prefixes = prefixes
        self._workers = WorkerRows(models, requests.metrics.last_requests)
        self._decisions: deque[tuple[int, Document]] = deque(maxlen=MOST_DECISIONS)
        self._numbered = 0
        self._last_decisions: dict[str, Decision] = {}
        self._epoch = time.time() - perf_counter()
        """What turns the clock of the measurements into seconds since 1970."""

    def open(self) -> None:
        """Someone begins to look."""
        self._planners.start()

    def want_prefixes(self, wanted: bool) -> None:
        """Whether any viewer asks for the cached prefixes."""
        if wanted:
            self._prefixes.start()
        else:
            self._prefixes.stop()

    @property
    def scan_seconds(self) -> float:
        """Processor time spent on looking for cached prefixes."""
        return self._prefixes.seconds

    def document(self) -> Document:
        served = self._models.served()
        self._add_decisions(served)
        return {
            "version": __version__,
            "running": len(self._requests),
            "models": self._model_rows(served),
            "workers": self._workers.rows(self._models.versions()),
            "gone": self._recorder.log.gone_rows(),
            "events": self._recorder.log.event_rows(),
            "history": self._recorder.history.rows(),
            "requests": {record.request_id: self._request(record) for record in self._requests.oldest(MOST_REQUESTS)},
            "decisions": {str(number): row for number, row in self._decisions},
            "sessions": session_rows(self._requests.sessions),
            "migrations": self._migrations(),
            "handoffs": handoff_rows(served),
            "planners": self._planners.rows(),
            "prefixes": self._prefixes.rows,
        }

    def forget(self) -> None:
        """The last viewer has left: hold on to nothing."""
        self._planners.stop()
        self._prefixes.stop()
        self._workers.forget()
        self._decisions.clear()
        self._last_decisions.clear()

    def _model_rows(self, served: list[ServedModel]) -> Document:
        failures = self._models.failures()
        rows: Document = {}
        for name, ready in self._models.readiness().items():
            error = failures.get(name)
            rows[name] = _row(ready=ready, error=str(error)[:LONGEST_NAME] if error else None)
        cards: dict[str, list[ModelCard]] = {}
        for worker in self._models.workers():
            if worker.card:
                cards.setdefault(worker.card.name, []).append(worker.card)
        for model in served:
            router, stats = model.router, model.router.stats
            rows[model.name] = {
                "ready": True,
                "running": router.active,
                "waiting": router.waiting,
                "waiting_tokens": router.waiting_tokens,
                "requests": stats.requests,
                "rejected": stats.rejected,
                "prompt_blocks": stats.prompt_blocks,
                "overlap_blocks": stats.overlap_blocks,
                "known_blocks": router.known_blocks,
            }
            if splits := split_counts(model):
                rows[model.name]["splits"] = splits
            if fairness := fairness_row(model, cards.get(model.name, [])):
                rows[model.name]["fairness"] = fairness
        return rows

    def _request(self, record: RequestRecord) -> Document:
        record.settle()
        deliveries = record.deliveries
        placements = [one.placement for one in deliveries if one.placement]
        migrations = sum(one.history.migrations for one in deliveries)
        return _row(
            model=record.model[:LONGEST_NAME],
            session=record.session.id[:LONGEST_SHOWN] if record.session else None,
            stage=_stage(record),
            workers=[str(one.instance_id) for one in placements],
            started=round(record.started + self._epoch, 3),
            ttft_ms=round(first * 1000, 1) if (first := record.time_to_first_token) is not None else None,
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            migrations=migrations or None,
        )

    def _add_decisions(self, served: list[ServedModel]) -> None:
        new: list[tuple[Decision, str]] = []
        for model in served:
            last = self._last_decisions.get(model.name)
            latest = _newest(model.router.decisions, last)
            if latest:
                self._last_decisions[model.name] = latest[0]
                new += [(decision, model.name) for decision in latest]
        new.sort(key=lambda one: one[0].time)
        for decision, name in new[-NEW_DECISIONS if self._decisions else -MOST_DECISIONS :]:
            self._numbered += 1
            self._decisions.append((self._numbered, decision_row(decision, name)))

    def _migrations(self) -> Document:
        return {
            f"{request.request_id}/{number}": _row(
                time=round(request.time, 3),
                request_id=request.request_id,
                model=request.model[:LONGEST_NAME],
                kind=one.kind,
                outcome=one.outcome,
                ms=round(one.seconds * 1000, 1),
                source=str(one.source),
                target=str(request.worker_id) if request.worker_id is not None else None,
            )
            for request in self._requests.metrics.migrated
            for number, one in enumerate(request.migrations)
        }


def decision_row(decision: Decision, model: str) -> Document:
    choice = decision.choice
    row = _row(
        time=round(decision.time, 3),
        request_id=decision.request_id,
        model=model[:LONGEST_NAME],
        mode=decision.mode,
        worker=_key(WorkerRank(decision.worker_id, choice.worker.dp_rank if choice else decision.dp_rank or 0)),
        pinned=decision.pinned or None,
        session=decision.session[:LONGEST_SHOWN] or None,
        considered=decision.considered,
        waited_ms=round(decision.waited * 1000, 1),
    )
    if choice is None:
        return row | {"in_flight": decision.in_flight}
    reasons = decision.reasons(MOST_CANDIDATES)
    chosen = _candidate(reasons["chosen"])
    candidates = [_candidate(one) for one in reasons["candidates"]]
    if chosen not in candidates:
        candidates.append(chosen)
    return row | _row(
        prompt_tokens=choice.prompt_tokens,
        prompt_blocks=choice.prompt_blocks,
        passed_over=reasons["passed_over"],
        candidates=candidates,
    )


def _candidate(reasons: dict[str, Any]) -> Document:
    return {
        "worker": _key(WorkerRank(reasons["worker_id"], reasons["dp_rank"])),
        "cached_blocks": round(reasons["cached_blocks"], 1),
        **{name: reasons[name] for name in ("prefill_tokens", "waiting_tokens", "decode_blocks", "requests")},
        **{name: round(reasons[name], 2) for name in ("cost", "work", "waiting", "crowding", "spreading")},
    }


def _newest(decisions: deque[Decision], last: Decision | None) -> list[Decision]:
    """Those after `last`, the newest first, and no more than can be shown."""
    return list(islice(takewhile(lambda one: one is not last, reversed(decisions)), MOST_DECISIONS))


def _stage(record: RequestRecord) -> str:
    if any(one.history.is_migrating for one in record.deliveries):
        return "migrating"
    if record.time_to_first_token is not None:
        return "decode"
    return "prefill" if record.stage == DISPATCH else record.stage or "arriving"


def _key(worker: WorkerRank) -> str:
    return f"{worker.worker_id}/{worker.dp_rank}"


def _row(**fields: Any) -> Document:
    return {name: value for name, value in fields.items() if value is not None}
