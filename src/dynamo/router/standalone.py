"""A KV router on the workers of one endpoint, for those who route without a frontend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from dynamo.protocols.card import ModelCard
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import CannotConnect, DynamoException, InvalidArgument
from dynamo.router.config import RouterConfig
from dynamo.router.kv.choice.cost import Choice, CostConfig
from dynamo.router.kv.index.overlaps import Overlap
from dynamo.router.kv.router import KvAwareRouter
from dynamo.router.router import Placement, on_rank
from dynamo.router.workers import Workers
from dynamo.runtime import Context, DistributedRuntime, EndpointId
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

_OVERRIDES = {
    "overlap_score_weight": "overlap_weight",
    "overlap_score_credit": "overlap_weight",
    "router_temperature": "temperature",
}


class StandaloneRouter:
    """Routes to the endpoint's workers from `start` to `close`."""

    def __init__(
        self, runtime: DistributedRuntime, endpoint: EndpointId, config: RouterConfig, block_size: int | None = None
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._block_size = block_size
        self._workers = Workers(runtime, endpoint, self._agree)
        self._core: KvAwareRouter | None = None
        self._made = asyncio.Event()
        self._warned = False

    async def start(self) -> StandaloneRouter:
        """Returns when the workers that are there are known and, if no block size was given, one has told it."""
        await self._runtime.start()
        await self._workers.start()
        if self._block_size is not None:
            self._make(self._block_size)
        else:
            await self._made.wait()
        return self

    async def close(self) -> None:
        await self._workers.close()
        if self._core:
            await self._core.close()

    @property
    def core(self) -> KvAwareRouter:
        assert self._core, "start() has not returned yet"
        return self._core

    @property
    def block_size(self) -> int:
        assert self._block_size is not None
        return self._block_size

    async def send(
        self, request: PreprocessedRequest, context: Context, sink: Sink, override: CostConfig | None = None
    ) -> Placement:
        """Place a request and push its answer into `sink`; its booking ends with it."""
        pinned = request.routing.backend_instance_id if request.routing else None
        placement = await self.core.open(request, request_id=context.id(), pinned=pinned, cost=override)
        if placement.dp_rank is not None:
            request = on_rank(request, placement.dp_rank)
        booked = BookedSink(placement, sink)
        try:
            placement.channel.send(request, context, booked, item_type=EngineOutput, columnar=True)
        except CannotConnect:
            placement.release()
            raise
        return placement

    async def book(
        self, request: PreprocessedRequest, request_id: str, override: CostConfig | None = None, *, learn: bool
    ) -> Placement:
        """Place a request that somebody else will send; so nothing is sent to any worker on its account."""
        return await self.core.open(request, request_id=request_id, cost=override, copies=False, learn=learn)

    def peek(self, request: PreprocessedRequest, override: CostConfig | None = None) -> Choice:
        """What would be chosen now."""
        return self.core.peek(request, override)

    def survey(self, request: PreprocessedRequest, override: CostConfig | None = None) -> Choice:
        """The same with all workers among the candidates, whether they would be chosen from or not."""
        return self.core.peek(request, override, everybody=True)

    def override(self, told: Mapping[str, Any] | None) -> CostConfig | None:
        """The costs a request asks for by `router_config_override`; names what it cannot follow."""
        if not told:
            return None
        if not isinstance(told, Mapping):
            raise InvalidArgument(f"router_config_override must be an object, not {type(told).__name__}")
        values: dict[str, float] = {}
        for name, value in told.items():
            if name not in _OVERRIDES:
                raise InvalidArgument(f"router_config_override has no '{name}'; it knows {', '.join(_OVERRIDES)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidArgument(f"router_config_override.{name} must be a number, not {value!r}")
            values[_OVERRIDES[name]] = value
        return structs.replace(self._config.cost, **values)

    def overlap_scores(self, request: PreprocessedRequest) -> dict[str, Any]:
        """How much of the prompt each rank holds; those of slower tiers also counted from the first block."""
        choice = self.survey(request)
        rows = [
            _overlap_row(candidate.worker, candidate.overlap, candidate.cached_blocks)
            for candidate in choice.candidates()
        ]
        return {"block_size": self.block_size, "num_blocks": choice.prompt_blocks, "workers": rows}

    def _agree(self, instance_id: int, card: ModelCard) -> None:
        if self._block_size is None:
            self._block_size = card.kv_cache_block_size
            self._make(self._block_size)
        elif card.kv_cache_block_size != self._block_size and not self._warned:
            self._warned = True
            log.warning(
                "instance %x has blocks of %d tokens, this router looks for blocks of %d: nothing it caches will be "
                "found, and it is chosen by load only",
                instance_id,
                card.kv_cache_block_size,
                self._block_size,
            )

    def _make(self, block_size: int) -> None:
        if self._core is None:
            workers = self._workers
            self._core = KvAwareRouter(self._config, workers.instances, self._runtime, block_size, workers.runtime_of)
            self._core.start()
            self._made.set()


class BookedSink:
    """Hands on what it is told, and gives the booking back when the stream is over."""

    def __init__(self, placement: Placement, sink: Sink) -> None:
        self._placement = placement
        self._sink = sink
        self._begun = False

    def tokens(self, ids: list[int]) -> None:
        if not self._begun:
            self._begun = True
            self._placement.first_token()
        self._sink.tokens(ids)

    def item(self, value: Any) -> None:
        if not self._begun and isinstance(value, EngineOutput) and value.token_ids:
            self._begun = True
            self._placement.first_token()
        self._sink.item(value)

    def end(self) -> None:
        self._placement.release()
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        self._placement.release()
        self._sink.fail(error)


def prompt(
    token_ids: Sequence[int],
    *,
    lora_name: str | None = None,
    cache_salt: str | None = None,
    worker_id: int | None = None,
    dp_rank: int | None = None,
) -> PreprocessedRequest:
    """A prompt to ask about; names what is wrong with it."""
    told = {
        "token_ids": token_ids,
        "routing": {
            "lora_name": lora_name,
            "cache_salt": cache_salt,
            "backend_instance_id": worker_id,
            "dp_rank": dp_rank,
        },
    }
    try:
        return PreprocessedRequest.from_dict(told)
    except msgspec.ValidationError as error:
        raise InvalidArgument(str(error)) from None


def _overlap_row(worker: tuple[int, int], overlap: Overlap, credit: float) -> dict[str, Any]:
    host = overlap.device + overlap.host
    return {
        "worker_id": worker[0],
        "dp_rank": worker[1],
        "device_blocks": overlap.device,
        "host_pinned_blocks": host,
        "disk_blocks": host + overlap.disk,
        "host_pinned_extension_blocks": overlap.host,
        "disk_extension_blocks": overlap.disk,
        "external_extension_blocks": overlap.external,
        "router_credit_blocks": credit,
    }
