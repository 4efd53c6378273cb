"""llama.cpp behind the engine contract: requests go to its thread, steps come back in one call each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

from dynamo.engines.base import (
    DeathListener,
    EngineError,
    EngineInfo,
    HeldPrefix,
    KvListener,
    KvTierListener,
    LoadListener,
    StepListener,
)
from dynamo.engines.grammar_guide import GrammarGuide, Guides
from dynamo.engines.llamacpp.args import LlamaCppArgs, gguf_file
from dynamo.engines.llamacpp.blocks import BlockMap
from dynamo.engines.llamacpp.decoder import LlamaDecoder
from dynamo.engines.llamacpp.held_prefixes import HeldPrefixes
from dynamo.engines.llamacpp.job import Job
from dynamo.engines.llamacpp.library import library, version
from dynamo.engines.llamacpp.scheduler import LlamaScheduler
from dynamo.engines.llamacpp.state import SequenceStates
from dynamo.engines.llamacpp.thread import EngineThread, StepReport
from dynamo.engines.llamacpp.tier_metrics import TierMetrics
from dynamo.engines.llamacpp.tier_setup import open_tiers, weights_digest
from dynamo.engines.registry import EngineSpec
from dynamo.kv.block_names import BlockNames
from dynamo.model import HubConfig, LoadedModel, ModelError, build_card, open_card
from dynamo.model.gguf import read_gguf
from dynamo.protocols.card import ModelInput, ModelType, WorkerType
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import DynamoException, EngineDied, EngineShutdown, InvalidArgument, from_exception
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

_BLOCK_SIZE = 16
_FEWEST_CELLS = 8192


class LlamaCppRunning:
    """A request that llama.cpp is answering."""

    __slots__ = ("_engine", "_job")

    def __init__(self, engine: LlamaCppEngine, job: Job | None) -> None:
        self._engine = engine
        self._job = job

    def abort(self) -> None:
        """Free what the request holds and end its stream as cancelled, unless it has ended."""
        if self._job is not None:
            self._engine.abort(self._job)


class LlamaCppEngine:
    """Continuous batching over the low-level API of llama.cpp, with token ids in and out."""

    model_input = ModelInput.Tokens

    def __init__(self, spec: EngineSpec) -> None:
        self._args = LlamaCppArgs.from_spec(spec)
        self._file = gguf_file(spec)
        self._spec = spec
        library()
        self._block_size = spec.kv_cache_block_size or _BLOCK_SIZE
        if self._block_size < 1:
            raise EngineError(f"--kv-cache-block-size must be at least 1, not {self._block_size}")
        self._transfer = ""
        """How an engine that computes prompts for others, or continues from theirs, transfers state."""
        self._thread: EngineThread | None = None
        self._dead: EngineThread | None = None
        """One that died, until `close` has joined it."""
        self._open: set[Job] = set()
        """Their sinks have not ended."""
        self._holding: set[Job] = set()
        """They may hold something in the thread."""
        self._on_kv_events: KvListener | None = None
        self._on_kv_tier_events: KvTierListener | None = None
        self._on_load: LoadListener | None = None
        self._on_death: DeathListener | None = None

    async def start(self) -> EngineInfo:
        begun = time.perf_counter()
        decoder = await asyncio.to_thread(self._load)
        self.blocks = BlockMap(
            decoder,
            decoder.cells,
            self._args.sequences - 1,
            self._block_size,
            prefixes=self._args.cached_seqs,
            caching=await asyncio.to_thread(self._keeps_prefixes, decoder),
        )
        self.tiers = await asyncio.to_thread(open_tiers, self._args, self._file, decoder, self.blocks)
        self.names = BlockNames(self._block_size, self.tiers.store.secret if self.tiers is not None else None)
        self.scheduler = LlamaScheduler(
            decoder,
            self.blocks,
            max_num_seqs=self._args.max_num_seqs,
            n_batch=decoder.n_batch,
            tiers=self.tiers,
            exact=self._args.exact,
        )
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="llamacpp-grammar")
        self._thread = EngineThread(self.scheduler, decoder, self._deliver, self._died)
        self._states = SequenceStates(decoder, self.blocks, self.names)
        if self._args.worker_type is not WorkerType.Aggregated:
            self._transfer = await asyncio.to_thread(self._form_of_state, decoder.description)
        self._prefixes = HeldPrefixes(decoder, self.blocks, self._states, self.names, self._args.cached_seqs // 2)
        self.scheduler.give_way = self._prefixes.give_way
        log.info(
            "loaded %s with xllamacpp %s in %.1f s: %s, context of %d tokens, room for %d",
            self._file, version(), time.perf_counter() - begun, decoder.description, self.context_length, decoder.cells,
        )  # fmt: skip
        return EngineInfo(
            context_length=self.context_length,
            kv_cache_block_size=self._block_size,
            total_kv_blocks=decoder.cells // self._block_size,
            max_num_seqs=1 if self._args.exact else self._args.max_num_seqs,
            max_num_batched_tokens=decoder.n_batch,
            worker_type=self._args.worker_type,
            guided_decoding=find_spec("llguidance") is not None,
            resumes_guided=True,
        )

    def _keeps_prefixes(self, decoder: LlamaDecoder) -> bool:
        if self._args.exact or not decoder.rewinds:
            return False
        if decoder.restores():
            return True
        log.warning("no prefixes are kept: llama.cpp cannot restore the state of this model")
        return False

    def _form_of_state(self, model: str) -> str:
        """Equal for two engines exactly when one can continue from the other's state."""
        return f"llama.cpp state, {model}, {self._args.cache_type}, weights {weights_digest(self._file)[:12]}"

    def generate(self, request: PreprocessedRequest, sink: Sink) -> LlamaCppRunning:
        """Start one answer; if the request is invalid, its sink fails at once."""
        if self._thread is None:
            sink.fail(EngineShutdown("llamacpp is not running"))
            return LlamaCppRunning(self, None)
        try:
            job = Job(request, sink, context_length=self.context_length, vocab_size=self._vocab_size, names=self.names)
        except InvalidArgument as error:
            sink.fail(error)
            return LlamaCppRunning(self, None)
        self._open.add(job)
        self._holding.add(job)
        guidance = request.sampling_options.guided_decoding
        if guidance:
            # A grammar may take long to compile, so neither the event loop nor the engine waits for it.
            compiled = asyncio.get_running_loop().run_in_executor(self._compiler, self._guide, job, guidance)
            compiled.add_done_callback(partial(self._guided, job))
        else:
            self._thread.add(job)
        return LlamaCppRunning(self, job)

    def abort(self, job: Job) -> None:
        if job not in self._open or self._thread is None:
            return
        self._open.discard(job)
        self._thread.abort(job)
        job.sink.item(EngineOutput(finish_reason="cancelled"))
        job.sink.end()

    def quiet(self) -> bool:
        return not self._holding

    async def close(self) -> None:
        """Fail what is still running and free everything."""
        thread, self._thread, self._dead = self._thread or self._dead, None, None
        if thread is None:
            return
        await thread.close()
        await asyncio.to_thread(self._compiler.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._guides.close)
        self._fail_all(EngineShutdown("engine shutting down"))

    def on_kv_events(self, listener: KvListener) -> None:
        self._on_kv_events = listener

    def on_kv_tier_events(self, listener: KvTierListener) -> None:
        self._on_kv_tier_events = listener
        if self.tiers is not None:
            self.tiers.announce()

    def metrics_registry(self) -> TierMetrics:
        return TierMetrics(self.tiers.store if self.tiers is not None else None, self._block_size)

    def on_load(self, listener: LoadListener) -> None:
        self._on_load = listener

    def on_steps(self, listener: StepListener) -> None:
        """Called by the engine's thread."""
        self.scheduler.on_step = listener

    def on_death(self, listener: DeathListener) -> None:
        self._on_death = listener

    async def clear_cache(self) -> bool:
        return bool(await self._running().call(self.scheduler.clear_cache))

    async def export_prefix(self, token_ids: Sequence[int], cache_salt: str | None = None) -> bytes | None:
        """The state of the longest prefix of `token_ids` that the cache holds, in full blocks; None without any."""
        state: bytes | None = await self._running().call(partial(self._states.export, list(token_ids), cache_salt))
        return state

    @property
    def transfer(self) -> str:
        return self._transfer

    async def hold_prefix(self, token_ids: Sequence[int], cache_salt: str | None = None) -> HeldPrefix | None:
        held: HeldPrefix | None = await self._running().call(partial(self._prefixes.hold, token_ids, cache_salt))
        return held

    async def held_state(self, held: HeldPrefix) -> bytes:
        return bytes(await self._running().call(partial(self._prefixes.state, held)))

    async def release_prefix(self, held: HeldPrefix) -> None:
        if self._thread is not None:
            await self._thread.call(partial(self._prefixes.release, held))

    def held_blocks(self) -> int:
        return self._prefixes.blocks_held

    async def import_prefix(
        self, token_ids: Sequence[int], state: bytes, cache_salt: str | None = None, dp_rank: int | None = None
    ) -> int:
        """Add a state that `export_prefix` of the same model gave to the cache; returns how many tokens it holds.

        Raises InvalidArgument for a state of other tokens or another model; ResourceExhausted if there is no room.
        """
        import_ = partial(self._states.restore, list(token_ids), state, cache_salt)
        return int(await self._running().call(import_))

    def _load(self) -> LlamaDecoder:
        described = self._describe()
        asked = self._spec.context_length
        args = self._args
        log.info("loading %s with xllamacpp %s", self._file, version())
        trained = described.context_length
        wanted = asked or trained
        cells = args.n_ctx or (max(wanted, _FEWEST_CELLS) if wanted else 0)
        decoder = LlamaDecoder(
            self._file,
            cells=cells,
            batch=args.n_batch,
            sequences=args.sequences,
            threads=args.threads(self._file),
            gpu_layers=args.n_gpu_layers,
            cache_type=args.cache_type,
            vocabulary=self._vocabulary_from_elsewhere(described),
        )
        if args.disaggregation_mode != "agg" and not decoder.rewinds:
            decoder.close()
            raise EngineError(f"llamacpp cannot hand over the prompts of {self._file}: it is a recurrent model")
        possible = min(decoder.trained_context, decoder.cells)
        if asked is not None and not 1 <= asked <= possible:
            decoder.close()
            raise EngineError(f"context length {asked} is not within what model and cache hold, 1 to {possible}")
        self.context_length = min(wanted or possible, possible)
        self._vocab_size = decoder.vocab_size
        self._guides = Guides("llamacpp", described.tokenizer, decoder.vocab_size, described.eos_token_ids)
        return decoder

    def _vocabulary_from_elsewhere(self, described: LoadedModel) -> tuple[str, int] | None:
        """Architecture and number of tokens where the file lacks a tokenizer and --model-config gives it."""
        if self._spec.model_config is None:
            return None
        metadata = read_gguf(self._file).metadata
        if "tokenizer.ggml.model" in metadata:
            return None
        architecture = str(metadata.get("general.architecture"))
        return architecture, int(metadata.get(f"{architecture}.vocab_size", described.tokenizer.id_limit))

    def _describe(self) -> LoadedModel:
        """Tokenizer and end tokens, from the model's own files or those given with --model-config."""
        local = self._spec.model_config or self._spec.model
        assert local is not None
        try:
            card = build_card(local, name=self._spec.model_name or "model", model_type=ModelType.Backend)
            return open_card(card, HubConfig.from_env(self._spec.environ))
        except ModelError as error:
            raise EngineError(f"llamacpp cannot use {local.source}: {error}") from error

    def _guide(self, job: Job, guidance: dict[str, Any]) -> GrammarGuide:
        guide = self._guides.guide(guidance)
        guide.resume(job.resumed, job.max_tokens)
        return guide

    def _guided(self, job: Job, compiled: asyncio.Future[GrammarGuide]) -> None:
        if self._thread is None or job not in self._open:
            self._holding.discard(job)
            return
        error = None if compiled.cancelled() else compiled.exception()
        if error is not None:
            self._holding.discard(job)
            self._fail(job, from_exception(error))
            return
        job.guide = compiled.result()
        if job.guide.complete:
            # Another worker generated all of it and failed before it said so.
            self._holding.discard(job)
            self._open.discard(job)
            job.sink.item(EngineOutput(finish_reason="stop", completion_usage=job.usage()))
            job.sink.end()
            return
        self._thread.add(job)

    def _deliver(self, report: StepReport) -> None:
        """Everything one step did: the blocks first, so that no answer is ahead of them."""
        if self._on_kv_events is not None and report.events:
            self._on_kv_events(0, report.events)
        if self._on_kv_tier_events is not None:
            for tier, change in report.tier_events:
                self._on_kv_tier_events(0, tier, change)
        if self._on_load is not None and report.load is not None:
            self._on_load(report.load)
        self._holding.difference_update(report.released)
        for job, output in report.outputs:
            if job not in self._open:
                continue
            try:
                if type(output) is int:
                    job.sink.tokens([output])
                elif isinstance(output, DynamoException):
                    self._fail(job, output)
                else:
                    assert isinstance(output, EngineOutput)
                    if output.finish_reason is None:
                        job.sink.item(output)
                        continue
                    self._open.discard(job)
                    job.sink.item(output)
                    job.sink.end()
            except Exception:
                log.exception("a sink refused its tokens; dropping its request")
                self._open.discard(job)
                if self._thread is not None:
                    self._thread.abort(job)

    def _died(self, error: BaseException) -> None:
        self._thread, self._dead = None, self._thread
        self._compiler.shutdown(wait=False, cancel_futures=True)
        if self._on_death is not None:
            self._on_death(f"llamacpp died: {error}")
        self._fail_all(EngineDied(f"llamacpp died: {error}"))

    def _fail(self, job: Job, error: DynamoException) -> None:
        self._open.discard(job)
        job.sink.fail(error)

    def _fail_all(self, error: DynamoException) -> None:
        self._holding.clear()
        for job in tuple(self._open):
            self._fail(job, error)

    def _running(self) -> EngineThread:
        if self._thread is None:
            raise EngineShutdown("llamacpp is not running")
        return self._thread
