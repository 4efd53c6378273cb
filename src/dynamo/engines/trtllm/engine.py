"""TensorRT-LLM with token ids in and out."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorrt_llm import LLM
from tensorrt_llm.llmapi import DisaggregatedParams

from dynamo.engines.base import EngineError, EngineInfo, KvListener, LoadListener, RankLoad
from dynamo.engines.owner_thread import OwnerThread
from dynamo.engines.stream_engine import StreamEngine
from dynamo.engines.stream_request import StreamRequest, first_line
from dynamo.engines.trtllm import handoff
from dynamo.engines.trtllm.compiled import is_compiled
from dynamo.engines.trtllm.events import EventReader
from dynamo.engines.trtllm.options import sampling_params
from dynamo.engines.trtllm.request import TrtllmRequest
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import EngineShutdown, InvalidArgument, from_exception
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_WAIT_SECONDS = 0.5
"""How long TensorRT-LLM waits for the next event or report before it says that there is none."""
_LOAD_SECONDS = 0.1


class TrtllmEngine(StreamEngine):
    def __init__(
        self, arguments: dict[str, Any], *, kv_events: bool = True, role: WorkerType = WorkerType.Aggregated
    ) -> None:
        owner = OwnerThread("dynamo-trtllm", lambda: _load(arguments), lambda llm: llm.shutdown())
        super().__init__("TensorRT-LLM", owner)
        self._arguments = arguments
        self._role = role
        self._block_size = int(arguments["kv_cache_config"]["tokens_per_block"])
        self._context: int | None = arguments.get("max_seq_len")
        self._guided = bool(arguments.get("guided_decoding_backend")) and not arguments["skip_tokenizer_init"]
        self._kv_events = kv_events and arguments["kv_cache_config"].get("enable_block_reuse", True)
        self._busy = asyncio.Event()
        self._polls: list[asyncio.Task[None]] = []

    async def start(self) -> EngineInfo:
        begun = time.perf_counter()
        try:
            self._llm = await self._owner.start()
        except Exception as error:
            raise EngineError(f"TensorRT-LLM could not start: {first_line(error)}") from error
        log.info("TensorRT-LLM is ready after %.1f s", time.perf_counter() - begun)
        ranks = int(self._arguments.get("tensor_parallel_size", 1))
        return EngineInfo(
            context_length=self._context,
            kv_cache_block_size=self._block_size,
            max_num_seqs=self._arguments.get("max_batch_size"),
            max_num_batched_tokens=self._arguments.get("max_num_tokens"),
            data_parallel_size=ranks if self._arguments.get("enable_attention_dp") else 1,
            guided_decoding=self._guided,
            worker_type=self._role,
        )

    @property
    def transfer(self) -> str:
        return handoff.transfer_form(self._arguments)

    def prefilling(self, request: PreprocessedRequest) -> PreprocessedRequest:
        return handoff.prefilling(request)

    def continuing(self, request: PreprocessedRequest) -> PreprocessedRequest:
        return handoff.continuing(request)

    def generate(self, request: PreprocessedRequest, sink: Sink) -> StreamRequest:
        """Begin one request; what TensorRT-LLM rejects fails its sink at once."""
        running = TrtllmRequest(request, sink, self._requests.discard, self._died)
        if not self._runs:
            running.fail(EngineShutdown("TensorRT-LLM is not running"))
            return running
        try:
            result = self._llm.generate_async(**self._inputs(request), streaming=True)
        except Exception as error:
            running.fail(from_exception(error))
            return running
        self._requests.add(running)
        running.answered_by(result)
        self._busy.set()
        return running

    def _inputs(self, request: PreprocessedRequest) -> dict[str, Any]:
        ids, routing = request.token_ids, request.routing
        if routing is not None and routing.lora_name:
            raise InvalidArgument(f"this worker has no adapter '{routing.lora_name}'")
        inputs: dict[str, Any] = {
            "inputs": ids.tolist() if isinstance(ids, array) else list(ids),
            "sampling_params": sampling_params(request, context=self._context, guided=self._guided),
        }
        if request.kv_transfer_params:
            inputs["disaggregated_params"] = DisaggregatedParams(**handoff.from_wire(request.kv_transfer_params))
        if routing is not None and routing.cache_salt:
            inputs["cache_salt"] = routing.cache_salt
        return inputs

    async def _release(self) -> None:
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)
        await super()._release()

    def on_kv_events(self, listener: KvListener) -> None:
        if not self._kv_events:
            return
        reader = EventReader(self._block_size)

        def take(event: Any) -> None:
            rank, changes = reader.read(event)
            if changes:
                listener(rank, changes)

        self._poll(lambda: self._llm.get_kv_cache_events_async(timeout=_WAIT_SECONDS), take)

    def on_load(self, listener: LoadListener) -> None:
        if not self._arguments.get("enable_iter_perf_stats", True):
            return
        self._poll(lambda: self._llm.get_stats_async(timeout=_WAIT_SECONDS), StatsReader(listener).take)

    def _poll(self, ask: Callable[[], Any], take: Callable[[Any], None]) -> None:
        self._polls.append(asyncio.create_task(self._polling(ask, take)))

    async def _polling(self, ask: Callable[[], Any], take: Callable[[Any], None]) -> None:
        """TensorRT-LLM has no call that waits for the next: its iterators end when nothing comes for a while."""
        try:
            while True:
                # Once more after the last request ended: what its end caused is fetched too.
                idle = not self._requests
                async for item in ask():
                    take(item)
                if idle and not self._requests:
                    self._busy.clear()
                    await self._busy.wait()
                await asyncio.sleep(_POLL_SECONDS)
        except Exception as error:
            self._died(first_line(error))


def _load(arguments: dict[str, Any]) -> Any:
    """Blocks for minutes."""
    if is_compiled(Path(arguments["model"])):
        from tensorrt_llm._tensorrt_engine import LLM as CompiledLLM  # newer versions have none

        return CompiledLLM(**arguments)
    return LLM(**arguments)


class StatsReader:
    """Reports how full the cache is from the statistics of each step, but not more often than is useful."""

    def __init__(self, listener: LoadListener) -> None:
        self._listener = listener
        self._before: RankLoad | None = None
        self._at = 0.0

    def take(self, stats: dict[str, Any]) -> None:
        cache = stats.get("kvCacheStats") or {}
        used, total = cache.get("usedNumBlocks"), cache.get("maxNumBlocks")
        load = RankLoad(active_decode_blocks=used, kv_used_blocks=used, kv_total_blocks=total)
        now = time.monotonic()
        idle = not stats.get("numActiveRequests") and not stats.get("numQueuedRequests")
        if load != self._before and (idle or now - self._at >= _LOAD_SECONDS):
            self._before, self._at = load, now
            self._listener(load)
