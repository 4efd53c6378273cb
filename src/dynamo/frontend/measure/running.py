"""The requests that run, and which refusals are logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from time import perf_counter

from dynamo.api.openai.trace_payload import PayloadCapture
from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.frontend.measure.session_turns import SessionHistory
from dynamo.protocols.errors import DynamoException, ResourceExhausted

REFUSED = frozenset((401, 429, 503, 529))
SECONDS = 1.0


class RejectionLog:
    """During a flood one line a second is logged, as a line takes as long as the refusal itself."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._next = clock()
        self._left_out = 0

    def left_out(self) -> int | None:
        """How many refusals before this one were not logged; None if this one is not to be logged either."""
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return None
        count, self._left_out, self._next = self._left_out, 0, now + SECONDS
        return count


class RunningRequests:
    """All requests that run a model now, and the metrics they end up in."""

    def __init__(
        self,
        metrics: FrontendMetrics,
        on_end: Callable[[RequestRecord, int], None] | None = None,
        payloads: PayloadCapture | None = None,
    ) -> None:
        """`on_end` is called with the record of each request that ran a model, and its status.

        With `payloads` the records of chat requests keep what was said.
        """
        self.metrics = metrics
        self.payloads = payloads
        self.sessions = SessionHistory()
        self._on_end = on_end
        self._refusals = RejectionLog()
        self._records: dict[RequestRecord, None] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._records)

    def begin(
        self, method: str, path: str, request_id: str, endpoint: str | None = None, **kind: bool
    ) -> RequestRecord:
        """`endpoint` is the metrics' label of a request that runs a model; others are only logged."""
        return RequestRecord(self.metrics, request_id, method, path, endpoint, **kind)

    def check(self, limit: int) -> None:
        """Raises ResourceExhausted where as many requests run as may; 0 is no limit."""
        if limit and len(self._records) >= limit:
            raise ResourceExhausted(f"{limit} requests run already, which is the limit. Please retry shortly.")

    def run(self, record: RequestRecord) -> None:
        """The whole request has arrived: from now on it is one of those that run."""
        self._records[record] = None

    def end(self, record: RequestRecord, status: int) -> None:
        self._records.pop(record, None)
        is_refused = status in REFUSED and not record.is_probe
        self.sessions.ended(record)
        record.end(status, self._refusals.left_out() if is_refused else 0)
        if self._on_end and record.endpoint:
            self._on_end(record, status)

    def oldest(self, most: int) -> list[RequestRecord]:
        return list(islice(self._records, most))

    def abort(self, error: DynamoException) -> None:
        """End all of them with this error."""
        for record in tuple(self._records):
            record.abort(error)

    def settle(self) -> None:
        """Bring the metrics up to this moment."""
        for record in self._records:
            record.settle()

    def stages(self) -> tuple[Counter[str], int]:
        """How many running requests are in each stage, and how many streams they have open at workers."""
        stages = Counter(record.stage for record in self._records)
        return stages, sum(record.open_streams for record in self._records)
