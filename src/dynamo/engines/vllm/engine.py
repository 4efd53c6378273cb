"""vLLM with token ids in and out, a whole engine step at a time.

The `AsyncLLM` is used for what it assembles: the processes of the engine, its input checks, its statistics. Its own
output handler, which hands every token to a queue and a task of its request, is never started: `_read` takes its place
and pushes what one step produced for all requests straight into their sinks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vllm import PoolingParams
from vllm.distributed.kv_events import ZmqEventPublisher
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats

from dynamo.engines.base import Control, DeathListener, EngineError, EngineInfo, KvSocket, LoadListener, StepListener
from dynamo.engines.vllm import handoff
from dynamo.engines.vllm.adapters import VllmAdapters
from dynamo.engines.vllm.arguments import EngineArguments
from dynamo.engines.vllm.connector import worker_type
from dynamo.engines.vllm.controls import VllmControls
from dynamo.engines.vllm.environment import installed
from dynamo.engines.vllm.grammars import are_resumed
from dynamo.engines.vllm.intake import Intake
from dynamo.engines.vllm.nodes.cpu_ranks import announce_ranks
from dynamo.engines.vllm.nodes.followers import Followers
from dynamo.engines.vllm.nodes.layout import Announcement
from dynamo.engines.vllm.nodes.orphans import OwnChildren
from dynamo.engines.vllm.outbox import Outbox
from dynamo.engines.vllm.request import VllmRequest
from dynamo.engines.vllm.stats import LoadReports, Meter, StepStats, VllmMetrics
from dynamo.engines.vllm.steps import StepReader
from dynamo.process.threads import in_thread
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import DynamoException, EngineDied, EngineShutdown, InvalidArgument, from_exception
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class VllmEngine:
    model_input = ModelInput.Tokens

    def __init__(self, args: EngineArguments, sockets: TemporaryDirectory[str]) -> None:
        self._args = args
        self._sockets = sockets
        self._llm: AsyncLLM | None = None
        self._requests: dict[str, VllmRequest] = {}
        self._preparing: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._meter: Meter | None = None
        self._step_reader: StepReader | None = None
        self._on_death: DeathListener | None = None
        self._closed = False
        self._own = OwnChildren()
        self._followers = Followers(self._follower_left)
        self._left = ""
        self._dead = False

    async def start(self) -> EngineInfo:
        begun = time.perf_counter()
        if self._args.nnodes > 1:
            await self._followers.listen()
        # In a thread: it blocks for minutes. Without a running loop there, the output handler is not started.
        try:
            llm = await in_thread(self._load)
        except Exception as error:
            raise EngineError(f"vLLM could not start: {self._left or _first_line(error)}") from error
        config = llm.vllm_config
        ranks = len(llm.engine_core.engine_ranks_managed)
        blocks = (config.cache_config.num_gpu_blocks or 0) // ranks
        self._llm = llm
        self._llm_config = config
        self._outbox = Outbox(llm.engine_core, self._not_sent)
        self._load_reports = LoadReports(blocks)
        if llm.logger_manager is not None:
            self._meter = Meter(llm.logger_manager)
        tasks = await llm.get_supported_tasks()
        if not {"generate", "embed"} & set(tasks):
            raise EngineError(f"vLLM runs this model for {', '.join(tasks)}, of which this worker serves none")
        self._embeds = "generate" not in tasks
        self._adapters = VllmAdapters(llm, self.clear_cache)
        self._intake = Intake(llm, tasks, self._adapters)
        self._reader = asyncio.create_task(self._read(llm.engine_core))
        llm.output_handler = self._reader  # nothing in vLLM may start a second one
        log.info("vLLM is ready after %.1f s: %d blocks of KV cache", time.perf_counter() - begun, blocks)
        return EngineInfo(
            context_length=config.model_config.max_model_len,
            kv_cache_block_size=config.cache_config.block_size,
            total_kv_blocks=blocks or None,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            data_parallel_size=ranks,
            worker_type=worker_type(self._args.disaggregation_mode),
            model_types=("Embedding",) if self._embeds else None,
            guided_decoding=not config.model_config.skip_tokenizer_init,
            resumes_guided=are_resumed(config),
            draft_tokens=config.speculative_config.num_speculative_tokens if config.speculative_config else 0,
        )

    def _load(self) -> AsyncLLM:
        announce_ranks(os.environ, self._args)
        several, watch = self._args.nnodes > 1, self._followers
        announcement = Announcement(self._args, watch.port, watch.secret) if several else None
        try:
            with self._own:
                llm = AsyncLLM.from_engine_args(self._args)
        finally:
            if announcement is not None:
                announcement.stop()
        if self._closed:
            llm.shutdown()
        # What was imported stays: without this a full collection stops all streams for a tenth of a second or more.
        gc.collect()
        gc.freeze()
        return llm

    def generate(self, request: PreprocessedRequest, sink: Sink) -> VllmRequest:
        """Begin one request; what vLLM rejects fails its sink at once."""
        running = VllmRequest(request, sink, self._forget)
        if self._llm is None or self._closed or self._dead:
            running.fail(EngineShutdown("vLLM is not running"))
            return running
        try:
            if self._embeds:
                self._send(running, self._intake.checked(running.id, request, self._pooling(request)))
                return running
            if known := self._intake.from_known(running.id, request):
                self._send(running, known)
                return running
            params = self._intake.params(request)
            if params.structured_outputs is None:
                self._send(running, self._intake.checked(running.id, request, params))
            else:
                # Compiling a grammar takes longer than the event loop may be blocked.
                running.preparing = asyncio.create_task(self._prepare(running, params))
                self._preparing.add(running.preparing)
                running.preparing.add_done_callback(self._preparing.discard)
        except Exception as error:
            running.fail(_refusal(error))
        return running

    @property
    def transfer(self) -> str:
        return handoff.transfer_form(self._llm_config, installed().version)

    def prefilling(self, request: PreprocessedRequest) -> PreprocessedRequest:
        return handoff.prefilling(request)

    def continuing(self, request: PreprocessedRequest) -> PreprocessedRequest:
        return handoff.continuing(request)

    def _pooling(self, request: PreprocessedRequest) -> PoolingParams:
        # vLLM rejects any number, also the model's own, for a model that was not trained to be shortened.
        own = request.dimensions == self._llm_config.model_config.get_hidden_size()
        return PoolingParams(task="embed", dimensions=None if own else request.dimensions)

    async def _prepare(self, running: VllmRequest, params: Any) -> None:
        try:
            request = await in_thread(lambda: self._intake.checked(running.id, running.request, params))
        except Exception as error:
            running.fail(_refusal(error))
        else:
            if not running.ended:
                self._send(running, request)

    def _send(self, running: VllmRequest, request: Any) -> None:
        if request.sampling_params is not None:
            running.max_tokens = request.sampling_params.max_tokens
        if self._meter is not None:
            running.stats = RequestStateStats(arrival_time=request.arrival_time)
        self._requests[running.id] = running
        self._outbox.add(request)

    def _forget(self, running: VllmRequest) -> None:
        """The request ended on our side; if vLLM still has it, it must free it."""
        if self._requests.pop(running.id, None) is not None:
            self._outbox.abort(running.id)

    def _not_sent(self, request_id: str, error: Exception) -> None:
        if running := self._requests.pop(request_id, None):
            running.fail(EngineDied("the engine died") if self._died else from_exception(error))

    @property
    def _died(self) -> bool:
        return self._llm is not None and bool(self._llm.errored)

    async def _read(self, core: Any) -> None:
        try:
            while True:
                self._step(await core.get_output_async())
        except Exception as error:
            if not self._closed:
                self._die(_first_line(error))

    def _step(self, outputs: Any) -> None:
        """Push what one engine step produced for all requests."""
        requests, meter = self._requests, self._meter
        step = StepStats(outputs.timestamp) if meter is not None and outputs.outputs else None
        for output in reversed(outputs.outputs):  # new requests come last, and their clients wait
            running = requests.get(output.request_id)
            if running is None:
                continue  # it was aborted
            if step is not None:
                step.tokens(output, running.stats)
            if output.finish_reason is not None:
                del requests[running.id]
            try:
                running.push(output)
            except Exception:
                log.exception("a sink refused its tokens; dropping its request")
                self._forget(running)
            if step is not None and output.finish_reason is not None:
                step.finished(output, running)
        if outputs.scheduler_stats is not None:
            self._load_reports.step(outputs.engine_index, outputs.scheduler_stats)
        if meter is not None:
            meter.record(step, outputs)

    def _die(self, reason: str) -> None:
        if self._dead:
            return
        self._dead = True
        log.error("vLLM died: %s", reason)
        self._fail_all(EngineDied("the engine died"))
        if self._on_death is not None:
            self._on_death(reason)

    def _follower_left(self) -> None:
        self._left = "a follower left"
        if self._llm is None:
            self._own.kill()  # it would wait for the follower
        elif not self._closed:
            self._die(self._left)

    def _fail_all(self, error: DynamoException) -> None:
        running = list(self._requests.values())
        self._requests.clear()
        for each in running:
            each.fail(error)

    def quiet(self) -> bool:
        return not self._requests and (self._llm is None or self._outbox.empty)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*self._preparing, return_exceptions=True)
        self._fail_all(EngineShutdown("engine shutting down"))
        await self._followers.close()
        if self._llm is None:
            # Still loading, or it could not: its process ends the loading thread too.
            self._own.kill()
        else:
            self._load_reports.close()
            if self._meter is not None:
                self._meter.close()
            await self._outbox.close()
            await in_thread(self._llm.shutdown)
            if self._step_reader is not None:
                await self._step_reader.close()
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
        gc.unfreeze()  # native modules report frozen objects as leaks when the process ends
        self._sockets.cleanup()

    def on_death(self, listener: DeathListener) -> None:
        self._on_death = listener

    def on_load(self, listener: LoadListener) -> None:
        self._load_reports.listen(listener)

    def on_steps(self, listener: StepListener) -> None:
        """For an engine made with `EngineSpec.steps`: another one sends none."""
        self._step_reader = StepReader(Path(self._sockets.name), listener)

    def metrics_registry(self) -> VllmMetrics:
        return VllmMetrics()

    def kv_sockets(self) -> list[KvSocket]:
        assert self._llm is not None
        config, core = self._llm.vllm_config, self._llm.engine_core
        events = config.kv_events_config
        if events is None or not events.enable_kv_cache_events or events.publisher != "zmq":
            return []
        bound = core.get_kv_event_sources() if hasattr(core, "get_kv_event_sources") else {}
        at = ZmqEventPublisher.offset_endpoint_port
        return [
            KvSocket(
                address=_reachable(bound[rank].endpoint if rank in bound else at(events.endpoint, rank)),
                replay_address=_reachable(
                    bound[rank].replay_endpoint if rank in bound else at(events.replay_endpoint, rank)
                ),
                block_size=config.cache_config.block_size,
                dp_rank=rank,
                topic=events.topic,
            )
            for rank in core.engine_ranks_managed
        ]

    def controls(self) -> Mapping[str, Control]:
        assert self._llm is not None
        return VllmControls(self._llm, self.clear_cache, self._step_all, self._die).table()

    async def load_adapter(self, name: str, folder: Path) -> int:
        return await self._adapters.load(name, folder)

    async def unload_adapter(self, name: str) -> None:
        await self._adapters.unload(name)

    async def clear_cache(self) -> bool:
        assert self._llm is not None
        # Without the connector's part, blocks in host memory would outlive it: those of a replaced adapter too.
        cleared = await self._llm.reset_prefix_cache(reset_connector=True)
        if not cleared and not self._requests:
            # vLLM frees blocks that other engines have fetched, or not fetched in time, only with its next step.
            await self._step_all()
            cleared = await self._llm.reset_prefix_cache(reset_connector=True)
        if cleared:
            await self._step_all()
        return bool(cleared)

    async def _step_all(self) -> None:
        """vLLM publishes the event of a cleared cache only with its next step."""
        assert self._llm is not None
        for rank in self._llm.engine_core.engine_ranks_managed:
            await self._one_token(rank)

    async def _one_token(self, rank: int) -> None:
        done = asyncio.Event()
        stops = StopConditions(max_tokens=1)
        request = PreprocessedRequest(token_ids=[0], stop_conditions=stops, routing=Routing(dp_rank=rank))
        self.generate(request, _Signal(done))
        await done.wait()


class _Signal:
    """A sink that only reports the end."""

    def __init__(self, done: asyncio.Event) -> None:
        self._done = done

    def tokens(self, ids: list[int]) -> None: ...

    def item(self, value: Any) -> None: ...

    def end(self) -> None:
        self._done.set()

    def fail(self, error: DynamoException) -> None:
        self._done.set()


def _reachable(address: Any) -> Any:
    """Where to connect to a socket that is bound to all addresses of this machine."""
    return address and address.replace("://*:", "://127.0.0.1:")


def _refusal(error: Exception) -> DynamoException:
    """vLLM's validation errors are ValueErrors up to 0.24 and of a class of its own since."""
    if any(kind.__name__ in ("VLLMValidationError", "VLLMClientError") for kind in type(error).__mro__):
        return InvalidArgument(str(error))
    return from_exception(error)


def _first_line(error: BaseException) -> str:
    if callable(found := getattr(error, "errors", None)):  # pydantic's first line says only how many there are
        return "; ".join(each["msg"].removeprefix("Value error, ") for each in found())
    return (str(error) or type(error).__name__).strip().splitlines()[0]
