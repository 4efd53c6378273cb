"""SGLang with token ids in and out."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from prometheus_client import REGISTRY, CollectorRegistry, Metric, multiprocess

from dynamo.engines.base import EngineError, EngineInfo, KvSocket, LoadListener, RankLoad
from dynamo.engines.owner_thread import OwnerThread
from dynamo.engines.sglang.arguments import resolved
from dynamo.engines.sglang.handoff import ROLES, health_check, transfer_form
from dynamo.engines.sglang.options import SamplingLimits, generate_arguments
from dynamo.engines.sglang.processes import DeathWatch, load, start_handle_loop
from dynamo.engines.sglang.request import SglangRequest
from dynamo.engines.sglang.steps import Steps
from dynamo.engines.stream_engine import StreamEngine
from dynamo.engines.stream_request import StreamRequest, first_line
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import (
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    ProtocolError,
    Unavailable,
    from_exception,
)
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

_LOAD_SECONDS = 0.5


class SglangEngine(StreamEngine):
    def __init__(self, args: Any, sockets: TemporaryDirectory[str], host: str = "127.0.0.1") -> None:
        """`host` is where other machines reach this one."""
        super().__init__("SGLang", OwnerThread("dynamo-sglang", lambda: load(args), lambda llm: llm.shutdown()))
        self._args = args
        self._host = host
        self._role = ROLES[args.disaggregation_mode]
        self._sockets = sockets
        self._watch = DeathWatch(self._died)
        self._load_reports: asyncio.Task[None] | None = None
        self._seed_logged = False

    async def start(self) -> EngineInfo:
        begun = time.perf_counter()
        self._watch.take_signal()
        try:
            llm = await self._owner.start()
        except Exception as error:
            raise EngineError(f"SGLang could not start: {first_line(error)}") from error
        self._llm = llm
        # What SGLang made of the arguments: its attention backends may need pages of another size.
        made = resolved(llm.server_args)
        self._steps = Steps(llm.tokenizer_manager, made)
        start_handle_loop(llm.tokenizer_manager)
        self._page_size = int(made["page_size"])
        self._kv_events = json.loads(made.get("kv_events_config") or "{}")
        self._ranks = max(int(made["dp_size"]), int(made.get("attn_dp_size") or 1))
        self._limits = SamplingLimits(
            ranks=self._ranks,
            guided=not made["skip_tokenizer_init"] and made["grammar_backend"] != "none",
            salts="cache_salt" in inspect.signature(llm.async_generate).parameters,
            seeded=bool(made["enable_deterministic_inference"]),
            vocabulary=llm.tokenizer_manager.model_config.vocab_size,
            tags=_tags(),
        )
        tokens = _cache_tokens(llm)
        log.info("SGLang is ready after %.1f s: KV cache of %s tokens", time.perf_counter() - begun, tokens)
        return EngineInfo(
            context_length=llm.tokenizer_manager.context_len,
            kv_cache_block_size=self._page_size,
            total_kv_blocks=tokens // self._page_size if tokens else None,
            max_num_seqs=made.get("max_running_requests"),
            max_num_batched_tokens=made.get("max_prefill_tokens"),
            data_parallel_size=self._ranks,
            guided_decoding=self._limits.guided,
            draft_tokens=self._steps.ahead,
            worker_type=self._role,
            computes_prompts=self._role is not WorkerType.Decode,
            bootstrap=(self._host, int(made["disaggregation_bootstrap_port"]))
            if self._role is WorkerType.Prefill
            else None,
        )

    @property
    def transfer(self) -> str:
        return transfer_form(resolved(self._llm.server_args))

    def prefilling(self, request: PreprocessedRequest) -> PreprocessedRequest:
        if request.bootstrap_info is None:
            raise InvalidArgument("SGLang computes prompts for others only with bootstrap_info")
        return request

    def continuing(self, request: PreprocessedRequest) -> PreprocessedRequest:
        if request.bootstrap_info is None:
            raise ProtocolError("SGLang continues only from bootstrap_info")
        return request

    def health_check_payload(self) -> dict[str, Any]:
        return health_check(self._role)

    def generate(self, request: PreprocessedRequest, sink: Sink) -> StreamRequest:
        """Begin one request; what SGLang refuses fails its sink."""
        rid = uuid4().hex
        error: DynamoException | None = None
        arguments: dict[str, Any] = {}
        if not self._runs:
            error = EngineShutdown("SGLang is not running")
        elif self._role is not WorkerType.Aggregated and request.bootstrap_info is None:
            error = Unavailable(f"SGLang as a {self._role.value} worker answers nothing without its other half")
        else:
            try:
                arguments = generate_arguments(request, rid, self._limits)
            except Exception as refused:
                error = from_exception(refused)
        running = SglangRequest(request, sink, self._forget, self._llm, arguments)
        if error is not None:
            running.fail(error)
            return running
        if request.sampling_options.seed is not None and not self._limits.seeded and not self._seed_logged:
            self._seed_logged = True
            log.info("without --enable-deterministic-inference seeds are accepted and have no effect")
        self._requests.add(running)
        self._steps.add(running)
        running.start()
        return running

    def _forget(self, running: StreamRequest) -> None:
        self._requests.discard(running)
        assert isinstance(running, SglangRequest)
        self._steps.forget(running)

    async def _release(self) -> None:
        self._watch.close()
        if self._load_reports is not None:
            self._load_reports.cancel()
            await asyncio.gather(self._load_reports, return_exceptions=True)
        await super()._release()
        self._watch.release_signal()
        gc.unfreeze()  # native modules report frozen objects as leaks when the process ends
        self._sockets.cleanup()

    def kv_sockets(self) -> list[KvSocket]:
        """One for each rank of this node."""
        events = self._kv_events
        if events.get("publisher") != "zmq":
            return []
        here = max(1, self._ranks // self._args.nnodes)
        return [
            KvSocket(
                address=_address(events.get("endpoint", "tcp://*:5557"), rank),
                replay_address=_address(events["replay_endpoint"], rank) if events.get("replay_endpoint") else None,
                block_size=self._page_size,
                dp_rank=rank,
                topic=events.get("topic", ""),
            )
            for rank in range(here)
        ]

    def on_load(self, listener: LoadListener) -> None:
        self._load_reports = asyncio.create_task(self._report_load(listener))

    async def _report_load(self, listener: LoadListener) -> None:
        """SGLang's schedulers leave their load in shared memory: reading it asks nothing of them."""
        before: dict[int, RankLoad] = {}
        try:
            while True:
                for rank in await self._llm.tokenizer_manager.get_loads():
                    used = -(-rank.num_used_tokens // self._page_size)
                    now = RankLoad(
                        dp_rank=rank.dp_rank,
                        active_decode_blocks=used,
                        active_prefill_tokens=rank.num_waiting_uncached_tokens,
                        kv_used_blocks=used,
                        kv_total_blocks=rank.max_total_num_tokens // self._page_size,
                        # Steps are not told apart by ranks: the first one reports for all.
                        draft_tokens=0 if rank.dp_rank else self._steps.draft_tokens,
                        accepted_tokens=0 if rank.dp_rank else self._steps.accepted_tokens,
                    )
                    if before.get(rank.dp_rank) != now:
                        before[rank.dp_rank] = now
                        listener(now)
                await asyncio.sleep(_LOAD_SECONDS)
        except Exception:
            log.exception("SGLang's load cannot be read; this worker reports none from now on")

    async def clear_cache(self) -> bool:
        return bool((await self._llm.tokenizer_manager.flush_cache()).success)

    def metrics_registry(self) -> SglangMetrics:
        return SglangMetrics(enabled=bool(self._args.enable_metrics))


class SglangMetrics:
    """SGLang's metrics, with `--enable-metrics`: those of its processes, from files, and those of this one."""

    def __init__(self, *, enabled: bool) -> None:
        self._processes = CollectorRegistry()
        if enabled:
            multiprocess.MultiProcessCollector(self._processes)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        for registry in (self._processes, REGISTRY):
            yield from (metric for metric in registry.collect() if metric.name.startswith("sglang"))


def _tags() -> dict[str, bool]:
    """What the installed xgrammar can do with tool calls."""
    try:
        from xgrammar import structural_tag
    except ImportError:  # another grammar backend
        return {}
    return {
        "counts": hasattr(structural_tag, "RepeatFormat"),
        "short_whitespace": "max_whitespace_cnt" in structural_tag.JSONSchemaFormat.model_fields,
    }


def _cache_tokens(llm: Any) -> int:
    return int(llm._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"])


def _address(endpoint: str, rank: int) -> str:
    """Where a rank publishes: SGLang adds its number to a TCP port, or to a name."""
    if rank and endpoint.startswith("tcp"):
        host, _, port = endpoint.rpartition(":")
        endpoint = f"{host}:{int(port) + rank}"
    elif rank:
        endpoint = f"{endpoint}_dp{rank}"
    return endpoint.replace("://*:", "://127.0.0.1:").replace("://0.0.0.0:", "://127.0.0.1:")
