"""The engine seam.

A token engine takes a `PreprocessedRequest` and pushes token ids; a text engine takes the OpenAI request as a dict and
pushes OpenAI chunks. Both push into a `Sink`, a whole step at a time.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from dynamo.protocols.card import ModelInput
from dynamo.protocols.errors import StartError
from dynamo.runtime.stream import Sink


class EngineInfo(Struct, kw_only=True):
    """What an engine knows of itself once it has started."""

    context_length: int | None = None
    kv_cache_block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_size: int = 1
    guided_decoding: bool | None = None
    """Whether it honours `sampling_options.guided_decoding`, or as a text engine `response_format` and the like.

    Not said: a token engine does not, a text engine is left to decide by itself.
    """


class Running(Protocol):
    def cancel(self) -> None:
        """Nobody wants the rest: free what the request holds and end or fail its sink, soon."""


class Engine(Protocol):
    model_input: ModelInput

    async def start(self) -> EngineInfo:
        """Load the model; raises EngineError when that cannot be done."""

    def submit(self, request: Any, sink: Sink) -> Running:
        """Begin one request. Its sink is ended or failed exactly once."""

    async def stop(self) -> None:
        """Fail what still runs and let go of everything."""


class EngineError(StartError):
    """An engine cannot start; the message names the reason and the fix."""
