"""The engine seam.

A token engine takes a `PreprocessedRequest` and pushes token ids; a text engine takes the OpenAI request as a dict and
pushes OpenAI chunks. Both push into a `Sink`, a whole step at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from dynamo.protocols.card import ModelInput, WorkerType
from dynamo.protocols.errors import StartError
from dynamo.protocols.kv import KvChange
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
    guided_decoding: bool | None = None
    """Whether it honours `sampling_options.guided_decoding`, or as a text engine `response_format` and the like.

    None: a token engine does not, a text engine decides for itself.
    """


class Running(Protocol):
    def cancel(self) -> None:
        """Stop generating: free what the request holds and end or fail its sink, soon."""


class Engine(Protocol):
    model_input: ModelInput

    async def start(self) -> EngineInfo:
        """Load the model; raises EngineError when that cannot be done."""

    def submit(self, request: Any, sink: Sink) -> Running:
        """Begin one request. Its sink is ended or failed exactly once."""

    async def stop(self) -> None:
        """Fail running requests and release everything."""


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


LoadListener = Callable[[RankLoad], None]


@runtime_checkable
class KvSource(Protocol):
    """An engine that knows what its prefix cache holds."""

    def on_kv_events(self, listener: KvListener) -> None:
        """Call `listener` for every change from now on; called once, before the first request."""


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
class LoadSource(Protocol):
    """An engine that knows how busy it is."""

    def on_load(self, listener: LoadListener) -> None:
        """Call `listener` when the load changes, but not at every step; called once, before the first request."""


@runtime_checkable
class CacheOwner(Protocol):
    """An engine whose prefix cache can be emptied."""

    async def clear_cache(self) -> bool:
        """Forget cached prefixes; False, and nothing is forgotten, while requests hold them."""


class EngineError(StartError):
    """An engine cannot start; the message names the reason and the fix."""
