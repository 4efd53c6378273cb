"""`KvRouter`: KV-aware routing for programs that send requests to workers without a frontend."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from dynamo.kv.hashing import local_hashes, media_hashes, salt_seed
from dynamo.llm.reservations import ProgramReservations
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.config import RoutingConfig
from dynamo.router.standalone.standalone import StandaloneRouter, prompt
from dynamo.runtime import Context, Endpoint
from dynamo.runtime.client import Inbox, Stream
from dynamo.runtime.stream import Sink
from dynamo.settings.router import AffinityMode, HandoffConfig, QueuePolicy

log = logging.getLogger(__name__)

SWEEP_SECONDS = 30.0


class KvRouterConfig(Struct, kw_only=True, frozen=True):
    """How workers are chosen; `docs/routing.md` explains each setting.

    The last group has ai-dynamo's names. The first three of them replace the settings they stand for; the others belong
    to another cost formula, and a router that is given one logs that it has no effect.
    """

    overlap_score_weight: float = 1.0
    router_temperature: float = 0.0
    use_kv_events: bool = True
    router_replica_sync: bool = False
    router_ttl_secs: float = 120.0
    router_host_cache_hit_weight: float = 0.75
    router_disk_cache_hit_weight: float = 0.25
    router_copy_prefixes: bool = True
    router_rule: str | None = None
    router_queue_threshold: float | None = None
    router_queue_policy: QueuePolicy = "fcfs"
    router_queue_limit: int = 256
    active_decode_blocks_threshold: float | None = None
    active_prefill_tokens_threshold: int | None = None
    active_prefill_tokens_threshold_frac: float | None = None
    router_session_affinity_ttl_secs: int | None = None
    router_session_affinity_mode: AffinityMode = "soft"
    router_keep_paused: bool = False
    stream_stall_secs: float = 30.0
    first_token_stall_secs: float = 120.0
    migration_wait_secs: float = 30.0
    router_conditional_disagg: bool = False
    router_conditional_disagg_config: HandoffConfig | None = None

    overlap_score_credit: float | None = None
    host_cache_hit_weight: float | None = None
    disk_cache_hit_weight: float | None = None
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    router_track_active_blocks: bool = True
    router_track_output_blocks: bool = False
    router_assume_kv_reuse: bool = True
    router_track_prefill_tokens: bool = True
    router_prefill_load_model: str = "none"
    router_event_threads: int = 4
    router_predicted_ttl_secs: float | None = None

    def __post_init__(self) -> None:
        for name in ("overlap_score_credit_decay", "prefill_load_scale", "decode_active_request_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value}")

    def with_overrides(self, **changes: Any) -> KvRouterConfig:
        """The same with these values; None leaves one as it is."""
        return structs.replace(self, **{name: value for name, value in changes.items() if value is not None})

    def copy(self) -> KvRouterConfig:
        return structs.replace(self)

    @classmethod
    def from_json(cls, config_json: str) -> KvRouterConfig:
        """A ValueError names the field that is wrong."""
        return msgspec.json.decode(config_json, type=cls)

    def without_effect(self) -> list[str]:
        """What was set and changes nothing here."""
        begin = self.__struct_fields__.index("overlap_score_credit_decay")
        defaults = KvRouterConfig()
        return [name for name in self.__struct_fields__[begin:] if getattr(self, name) != getattr(defaults, name)]

    def router_config(self) -> RoutingConfig:
        """The router's settings; this class's own fields, all but the first, have the names of its flags."""
        for name in self.without_effect():
            log.warning("KvRouterConfig: %s has no effect here", name)
        fields = self.__struct_fields__
        flags = {name: getattr(self, name) for name in fields[1 : fields.index("overlap_score_credit")]}
        if self.host_cache_hit_weight is not None:
            flags["router_host_cache_hit_weight"] = self.host_cache_hit_weight
        if self.disk_cache_hit_weight is not None:
            flags["router_disk_cache_hit_weight"] = self.disk_cache_hit_weight
        credit = self.overlap_score_credit
        weight = self.overlap_score_weight if credit is None else credit
        return RoutingConfig.from_env({}, router_mode="kv", kv_overlap_score_weight=weight, **flags)


class KvRouter:
    """Routes to the workers of an endpoint, from its construction (on the event loop) until its runtime closes."""

    def __init__(
        self,
        endpoint: Endpoint,
        block_size: int,
        kv_router_config: KvRouterConfig | None = None,
        aic_perf_config: None = None,
    ) -> None:
        if aic_perf_config is not None:
            raise ValueError("aic_perf_config: this build has no performance model")
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size must be an integer of at least 1, not {block_size!r}")
        config = (kv_router_config or KvRouterConfig()).router_config()
        self._router = StandaloneRouter(endpoint.runtime, endpoint.id, config, block_size)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reservations = ProgramReservations()
        endpoint.runtime.own(self._live(), f"the KV router for {endpoint}")

    async def generate(
        self,
        token_ids: Sequence[int],
        model: str = "",
        stop_conditions: Mapping[str, Any] | None = None,
        sampling_options: Mapping[str, Any] | None = None,
        output_options: Mapping[str, Any] | None = None,
        router_config_override: Mapping[str, Any] | None = None,
        worker_id: int | None = None,
        dp_rank: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
        context: Context | None = None,
        response_buffer_size: int = 100,
    ) -> AsyncIterator[dict[str, Any]]:
        """Send a prompt to the worker where it costs least, or to the named one; yields the outputs as dicts.

        `response_buffer_size` has no effect: what the worker sends is kept until it is read.
        """
        request = {
            "model": model,
            "token_ids": token_ids,
            "stop_conditions": stop_conditions or {},
            "sampling_options": sampling_options or {},
            "output_options": output_options or {},
            "extra_args": extra_args,
            "routing": {"backend_instance_id": worker_id, "dp_rank": dp_rank},
        }
        return await self.generate_from_request(request, router_config_override, context, response_buffer_size)

    async def generate_from_request(
        self,
        request: Mapping[str, Any],
        router_config_override: Mapping[str, Any] | None = None,
        context: Context | None = None,
        response_buffer_size: int = 100,
    ) -> AsyncIterator[dict[str, Any]]:
        """The same for a whole request in the form workers receive."""
        if response_buffer_size < 0:
            raise ValueError(f"response_buffer_size must be at least 0, not {response_buffer_size}")
        try:
            typed = PreprocessedRequest.from_dict(request)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"request: {error}") from None
        await self._started()
        inbox = Inbox(context)
        await self._router.send(typed, inbox.context, DictSink(inbox), self._router.override(router_config_override))
        return Stream(inbox, annotated=False)

    async def best_worker(
        self,
        token_ids: Sequence[int],
        router_config_override: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        update_indexer: bool = False,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> tuple[int, int, int]:
        """Return worker id, dp rank and the blocks it holds. With `request_id` the load is reserved there until `free`.

        Without KV events, `update_indexer` makes the router count the prompt as cached there; it needs a reservation.
        """
        if update_indexer and request_id is None:
            raise ValueError("update_indexer needs a request_id: only what is booked is remembered")
        await self._started()
        request = prompt(token_ids, lora_name=lora_name, cache_salt=cache_salt)
        override = self._router.override(router_config_override)
        if request_id is None:
            peeked = self._router.core.peek(request, override)
            return *peeked.worker, peeked.overlap.device
        if request_id in self._reservations:
            raise ValueError(f"request_id '{request_id}' is booked already")
        placement = await self._router.reserve(request, request_id, override, learn=update_indexer)
        if request_id in self._reservations:
            placement.release()
            raise ValueError(f"request_id '{request_id}' is booked already")
        self._reservations.add(request_id, placement, asyncio.get_running_loop().time())
        choice = placement.decision.choice if placement.decision else None
        assert choice
        return *choice.worker, choice.overlap.device

    async def mark_prefill_complete(self, request_id: str) -> None:
        """The first token of a reserved request has arrived; an unknown id is ignored."""
        self._reservations.first_token(request_id, asyncio.get_running_loop().time())

    async def free(self, request_id: str) -> None:
        """A reserved request has ended; an unknown id is ignored."""
        self._reservations.free(request_id)

    async def get_potential_loads(
        self, token_ids: Sequence[int], router_config_override: Mapping[str, Any] | None = None
    ) -> list[dict[str, int]]:
        """The load each rank would have if the prompt went there."""
        await self._started()
        override = self._router.override(router_config_override)
        choice = self._router.core.peek(prompt(token_ids), override, include_busy=True)
        return [
            {
                "worker_id": candidate.worker.worker_id,
                "dp_rank": candidate.worker.dp_rank,
                "potential_prefill_tokens": candidate.waiting_tokens + candidate.prefill_tokens,
                "potential_decode_blocks": candidate.decode_blocks,
            }
            for candidate in choice.candidates()
        ]

    async def get_overlap_scores(
        self, token_ids: Sequence[int], *, lora_name: str | None = None, cache_salt: str | None = None
    ) -> dict[str, Any]:
        """How many leading blocks of the prompt each rank holds, per tier."""
        await self._started()
        return self._router.overlap_scores(prompt(token_ids, lora_name=lora_name, cache_salt=cache_salt))

    async def dump_events(self) -> str:
        """All blocks the index knows, as JSON: per rank and tier the events that would store them one by one."""
        await self._started()
        index = self._router.core.index
        events = [
            {
                "worker_id": worker.worker_id,
                "storage_tier": tier.tier.value,
                "event": {
                    "event_id": at,
                    "dp_rank": worker.dp_rank,
                    "data": {"stored": {"parent_hash": parent, "blocks": [{"block_hash": own, "sequence_hash": own}]}},
                },
            }
            for worker in sorted(index.workers)
            for tier in index.snapshot(worker)
            for at, (own, parent) in enumerate(zip(tier.sequence_hashes, tier.parents, strict=True))
        ]
        return msgspec.json.encode(events).decode()

    async def _started(self) -> None:
        await asyncio.shield(self._ready)

    async def _live(self) -> None:
        try:
            await self._router.start()
            self._ready.set_result(None)
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                self._reservations.expire(asyncio.get_running_loop().time())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(RuntimeError(f"the KV router did not start: {error}"))
                self._ready.exception()  # Callers get it; marked as retrieved, because there may be none.
            raise
        finally:
            await self._router.close()


class DictSink:
    """Turns structs into dicts on their way to a user."""

    def __init__(self, sink: Sink) -> None:
        self.tokens = sink.tokens
        self.end = sink.end
        self.fail = sink.fail
        self._sink = sink

    def item(self, value: Any) -> None:
        self._sink.item(msgspec.to_builtins(value))


def compute_block_hash_for_seq(
    tokens: Sequence[int],
    kv_block_size: int,
    block_mm_infos: Sequence[Any] | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_salt: str | None = None,
    *,
    cache_namespace: str | None = None,
) -> list[int]:
    """One hash per full block of its own tokens, and of the images in it, as KV events carry them.

    `block_mm_infos` has, per block, None or `{"mm_objects": [{"mm_hash": int}, …]}`; `cache_namespace` is another name
    of `cache_salt`.
    """
    if kv_block_size < 1:
        raise ValueError(f"kv_block_size must be at least 1, not {kv_block_size}")
    seed = salt_seed(lora_name, cache_salt or cache_namespace)
    if not any(block_mm_infos or ()):
        return local_hashes(tokens, kv_block_size, seed, eagle=bool(is_eagle))
    if is_eagle:
        raise ValueError("block_mm_infos: blocks of speculative decoding cannot hold images")
    media = [
        [int(one["mm_hash"]) & (1 << 64) - 1 for one in (info or {}).get("mm_objects", ())]
        for info in block_mm_infos or ()
    ]
    return media_hashes(tokens, kv_block_size, media, seed)
