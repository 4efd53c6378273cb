"""The contract of an engine; `dynamo.worker` exports it.

A token engine takes a `PreprocessedRequest` and pushes token ids; a text engine takes the OpenAI request as a dict and
pushes OpenAI chunks. Both push into a `Sink`, a whole step at a time. What else an engine can do is declared by the
methods it has: one protocol below for each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from dynamo.kv.messages import KvChange, Tier, TierReport
from dynamo.kv.pauses import SessionPause
from dynamo.protocols.card import ModelInput, WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import StartError
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledRequestMetrics
from dynamo.runtime.stream import Sink


class EngineInfo(Struct, kw_only=True):
    """What an engine reports of itself once it has started."""

    context_length: int | None = None
    kv_cache_block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_size: int = 1
    worker_type: WorkerType = WorkerType.Aggregated
    model_types: tuple[str, ...] | None = None
    """The requests this model can serve, by the names of `ModelType`; None: those of the engine's entry."""
    computes_prompts: bool = True
    """Whether a decode engine can also answer without a prefill engine."""
    bootstrap: tuple[str, int] | None = None
    """Host and port where a prefill engine meets those that continue."""
    follower: bool = False
    """A node of an engine on several nodes that takes no requests: the worker registers nothing."""
    guided_decoding: bool | None = None
    """Whether it honours `sampling_options.guided_decoding`, or as a text engine `response_format` and the like.

    None: a token engine does not, a text engine decides for itself.
    """
    resumes_guided: bool = False
    """Whether the grammar of a guided request takes in its `resumed_tokens`."""
    draft_tokens: int = 0
    """Tokens that it guesses ahead at a time."""


class Running(Protocol):
    def abort(self) -> None:
        """Stop this request: free what it holds and end or fail its sink, soon. Safe twice and after its end."""


class Engine(Protocol):
    model_input: ModelInput

    async def start(self) -> EngineInfo:
        """Load the model and be ready to generate; raises EngineError when that cannot be done."""

    def generate(self, request: Any, sink: Sink) -> Running:
        """Begin one request and return at once. Its sink is ended or failed exactly once, on the event loop."""

    def quiet(self) -> bool:
        """Whether no request holds anything in the engine."""

    async def close(self) -> None:
        """Fail running requests and release everything. Safe twice, before a start and after a failed one."""


KvListener = Callable[[int, list[KvChange]], None]
"""Called on the event loop with a data parallel rank and what happened to its blocks since the last call.

Blocks are identified by their sequence hashes (`dynamo.kv.hashing`).
"""


class RankLoad(Struct, kw_only=True, frozen=True):
    """How busy one data parallel rank is; None is not known."""

    dp_rank: int = 0
    active_decode_blocks: int | None = None
    active_prefill_tokens: int | None = None
    kv_used_blocks: int | None = None
    kv_total_blocks: int | None = None
    host_weight: float | None = None
    """What a block in host memory is worth, as a share of one on the device; None: not measured."""
    disk_weight: float | None = None
    draft_tokens: int = 0
    """Guessed ahead since the engine started."""
    accepted_tokens: int = 0
    """Those of them that the model would have chosen too."""
    tiers: list[TierReport] = []


LoadListener = Callable[[RankLoad], None]


@runtime_checkable
class KvSource(Protocol):
    """An engine that knows what its prefix cache holds."""

    def on_kv_events(self, listener: KvListener) -> None:
        """Call `listener` for every change from now on; called once, before clients send requests."""


KvTierListener = Callable[[int, Tier, KvChange], None]
"""Like `KvListener`, for one change in a slower tier."""


@runtime_checkable
class KvTierSource(Protocol):
    """An engine that keeps KV blocks in slower tiers too. `Cleared` of its `KvListener` counts for all tiers."""

    def on_kv_tier_events(self, listener: KvTierListener) -> None:
        """Call `listener` for every change from now on, beginning with what the tiers hold; called once."""


class KvSocket(Struct, kw_only=True, frozen=True):
    """Where an engine publishes the KV events of one rank over ZMQ, in the form of vLLM and SGLang."""

    address: str
    block_size: int
    dp_rank: int = 0
    topic: str = ""
    replay_address: str | None = None


@runtime_checkable
class KvSocketSource(Protocol):
    """An engine that publishes its KV events itself."""

    def kv_sockets(self) -> list[KvSocket]:
        """One for each rank; asked once the engine has started."""


@runtime_checkable
class SessionKeeper(Protocol):
    """An engine that keeps the blocks of the sessions that return soonest."""

    def session_paused(self, pause: SessionPause) -> None:
        """What a router expects of a session, named in `Routing.session`, whose turn has ended."""


@runtime_checkable
class LoadSource(Protocol):
    """An engine that knows how busy it is."""

    def on_load(self, listener: LoadListener) -> None:
        """Call `listener` when the load changes, but not at every step; called once, before clients send requests."""


StepListener = Callable[[int, float, ScheduledRequestMetrics, QueuedRequestMetrics], None]
"""Called with a data parallel rank, the seconds that its step took, what was in it and what waited; by any thread."""


@runtime_checkable
class StepSource(Protocol):
    """An engine that knows what each of its steps computed."""

    def on_steps(self, listener: StepListener) -> None:
        """Call `listener` after every step from now on; called once, and only where steps are recorded."""


@runtime_checkable
class CacheOwner(Protocol):
    """An engine whose prefix cache can be emptied."""

    async def clear_cache(self) -> bool:
        """Forget cached prefixes; False, and nothing is forgotten, while requests hold them."""


@runtime_checkable
class HealthChecked(Protocol):
    """An engine that chooses the request by which it is tested, such as one for embeddings."""

    def health_check_payload(self) -> dict[str, Any]:
        """The smallest request with an answer, as `PreprocessedRequest` or OpenAI's request in builtin types.

        It must be answered before the worker registers; health checks, where enabled, send it to an idle worker.
        """


class HeldPrefix(Struct, frozen=True, kw_only=True):
    """The computed beginning of a prompt that an engine holds until it is released."""

    key: int
    tokens: int
    blocks: int


@runtime_checkable
class WorkerHandoff(Protocol):
    """An engine whose computed prompts another one can continue from. The worker moves the bytes between them."""

    @property
    def transfer(self) -> str:
        """The form of the state: engines with the same can continue from each other. Asked after the start."""

    async def hold_prefix(self, token_ids: Sequence[int], cache_salt: str | None = None) -> HeldPrefix | None:
        """Hold what is computed of this prompt, in full blocks; None if nothing is, or if there is no room for it."""

    async def held_state(self, held: HeldPrefix) -> bytes:
        """The state of a held prefix. Raises DynamoException if it had to give way."""

    async def release_prefix(self, held: HeldPrefix) -> None:
        """Hold it no longer. Safe twice."""

    def held_blocks(self) -> int:
        """The blocks of all held prefixes."""

    async def import_prefix(
        self, token_ids: Sequence[int], state: bytes, cache_salt: str | None = None, dp_rank: int | None = None
    ) -> int:
        """Add a state to the cache; returns how many tokens of the prompt it holds. Raises DynamoException if not."""


@runtime_checkable
class EngineHandoff(Protocol):
    """An engine that moves computed prompts to and from others itself. The worker carries what it writes, unread."""

    @property
    def transfer(self) -> str:
        """The form of the state: engines with the same can continue from each other. Asked after the start."""

    def prefilling(self, request: PreprocessedRequest) -> PreprocessedRequest:
        """The request that computes this prompt for another engine; its last output has `disaggregated_params`."""

    def continuing(self, request: PreprocessedRequest) -> PreprocessedRequest:
        """The request that continues from its `prefill_result` or `bootstrap_info`; DynamoException if it cannot."""


DeathListener = Callable[[str], None]
"""Called once, on the event loop, with the reason."""


@runtime_checkable
class DeathSource(Protocol):
    """An engine that can die while this process lives, such as one in a process of its own."""

    def on_death(self, listener: DeathListener) -> None:
        """Call `listener` when the engine can no longer generate; called once, after it has started.

        The worker then leaves discovery, fails its streams so that they migrate, closes the engine and exits.
        """


class MetricsRegistry(Protocol):
    """What `prometheus_client.CollectorRegistry` and its collectors have."""

    def collect(self) -> Iterable[Any]:
        """The metric families with their samples."""


@runtime_checkable
class MetricsSource(Protocol):
    """An engine with Prometheus metrics of its own."""

    def metrics_registry(self) -> MetricsRegistry:
        """Shown at the worker's /metrics; asked for once the engine has started, collected at each scrape."""


Control = Callable[[dict[str, Any]], Awaitable[Any]]
"""Called with the JSON object of the request; what it returns is the JSON of the answer."""


@runtime_checkable
class Controllable(Protocol):
    """An engine with operations besides answering, such as profiling or sleeping."""

    def controls(self) -> Mapping[str, Control]:
        """Served at POST /engine/control/NAME of the worker; asked for once the engine has started."""


@runtime_checkable
class AdapterHost(Protocol):
    """An engine that loads LoRA adapters while it runs; `routing.lora_name` of a request names the one to use."""

    async def load_adapter(self, name: str, folder: Path) -> int:
        """Load the adapter in `folder`, in PEFT's layout, and return its id; one already loaded stays.

        Raises InvalidArgument where it cannot be loaded.
        """

    async def unload_adapter(self, name: str) -> None:
        """Reject new requests with it; raises InvalidArgument if there is none of this name."""


class EngineError(StartError):
    """An engine cannot start; the message names the reason and the fix."""
