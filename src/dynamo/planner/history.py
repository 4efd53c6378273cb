"""What the planner has seen: one observation per tick."""

from __future__ import annotations

from msgspec import Struct

from dynamo.planner.config import Role


class TrafficSeen(Struct, frozen=True, kw_only=True):
    """What a frontend measured in the seconds before an observation."""

    requests: float
    """Requests that began."""
    first_tokens: float = 0.0
    """Requests whose first token came."""
    input_tokens: float | None = None
    """The mean prompt tokens of a request; None where none ended."""
    output_tokens: float | None = None
    generated: float = 0.0
    """Output tokens of all requests."""
    ttft: float | None = None
    """The mean time to the first token in seconds; None where no first token came."""
    itl: float | None = None
    waiting: float = 0.0
    """Requests without a first token at the time of the observation."""
    unfinished: float = 0.0
    """Requests that are answered, or wait for a worker of a model that has none, at that time."""
    context_length: float | None = None
    split_share: float | None = None
    """The share of requests whose prompts went to prefill workers; None where it is not known."""

    def prompts_computed(self, role: Role, *, split: bool) -> float:
        """How many prompts workers of this role computed; `split` says that there are two roles."""
        if not split or self.split_share is None:
            return self.first_tokens
        return self.first_tokens * (self.split_share if role == "prefill" else 1 - self.split_share)


class PoolSeen(Struct, frozen=True, kw_only=True):
    """The workers of one role at the time of an observation."""

    wanted: int
    """Workers that are started or about to start, by this planner or by someone else."""
    serving: int | None
    """Workers that take requests, as the frontend sees them; None where that is unknown."""
    starting: int = 0
    asked: int | None = None
    """Workers that this planner asked for last; None before it did."""
    in_progress: bool = False
    """The last order of workers is not carried out yet."""
    queued_tokens: float = 0.0
    """Prompt tokens without a first output, on all workers and in the router's queue."""
    kv_rate: float | None = None
    """The share of the KV blocks of all workers that is in use."""


class Observation(Struct, frozen=True, kw_only=True):
    at: float
    seconds: float
    """The time since the observation before it."""
    traffic: TrafficSeen | None
    """None where the metrics could not be read."""
    prefill: PoolSeen | None = None
    decode: PoolSeen | None = None

    def pool(self, role: Role) -> PoolSeen | None:
        return self.prefill if role == "prefill" else self.decode
