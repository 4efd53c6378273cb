"""Forward pass metrics: what one step of an engine computed, and how long it took. The names are ai-dynamo's."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

VERSION = 1


class ScheduledPrompt(Struct, frozen=True, gc=False):
    """What one step does of one prompt."""

    prompt_tokens: int
    tokens: int
    """Computed in this step."""
    kv_tokens: int
    """Cached, or computed by earlier steps."""


class ScheduledRequestMetrics(Struct, frozen=True, gc=False):
    """The requests of a step. Variances are those of the population."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    """Computed in this step: without what was cached, or computed by earlier steps."""
    var_prefill_length: float = 0.0
    """The variance of the lengths of whole prompts."""
    sum_prefill_kv_tokens: int = 0
    """The tokens of the same requests that were cached, or computed by earlier steps."""
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    """Prompt and answer so far."""
    var_decode_kv_tokens: float = 0.0

    @classmethod
    def of(cls, prefills: Sequence[ScheduledPrompt], contexts: Sequence[int]) -> ScheduledRequestMetrics:
        """From each prefilling request, and from the context of each decoding one."""
        return cls(
            len(prefills),
            sum([one.tokens for one in prefills]),
            _variance([one.prompt_tokens for one in prefills]),
            sum([one.kv_tokens for one in prefills]),
            len(contexts),
            sum(contexts),
            _variance(contexts),
        )


class QueuedRequestMetrics(Struct, frozen=True, gc=False):
    """The requests that wait while a step is computed; what the cache will spare them is not known yet."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    num_decode_requests: int = 0
    """Preempted after their first token."""
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0

    @classmethod
    def of(cls, prompts: Sequence[int], contexts: Sequence[int]) -> QueuedRequestMetrics:
        """From the length of each prompt that waits, and from the context of each preempted request."""
        return cls(len(prompts), sum(prompts), _variance(prompts), len(contexts), sum(contexts), _variance(contexts))


class ForwardPassMetrics(Struct, frozen=True, gc=False):
    """One step of one data parallel rank."""

    version: int = VERSION
    worker_id: str = ""
    dp_rank: int = 0
    counter_id: int = 0
    """Counts the steps of a rank, also those that are not recorded."""
    wall_time: float = 0.0
    """Seconds; 0 in a sign of life of an engine that does nothing."""
    scheduled_requests: ScheduledRequestMetrics = ScheduledRequestMetrics()
    queued_requests: QueuedRequestMetrics = QueuedRequestMetrics()


TRACE_SCHEMA = "dynamo.fpm.trace.v1"


class StepTraceSource(Struct, frozen=True):
    namespace: str = ""
    component: str = ""
    producer_id: str = ""


class StepTraceEvent(Struct, frozen=True, kw_only=True):
    schema: str = TRACE_SCHEMA
    source: StepTraceSource = StepTraceSource()
    capture_mode: str = "full"
    observed_at_unix_ms: int = 0
    fpm: ForwardPassMetrics


class StepTraceRow(Struct, frozen=True):
    """A line of a file of recorded steps."""

    timestamp: int
    """Milliseconds since recording began."""
    event: StepTraceEvent


def _variance(values: Sequence[int]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return sum([(value - mean) ** 2 for value in values]) / len(values)
