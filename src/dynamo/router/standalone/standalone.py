"""A KV router for the workers of one endpoint, for programs that route without a frontend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec
from msgspec import structs

from dynamo.handoff.router.handoffs import Handoffs
from dynamo.handoff.router.prefills import Prefills
from dynamo.kv.index.overlaps import Overlap
from dynamo.protocols.card import ModelCard, WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.cost import CostConfig
from dynamo.router.config import RoutingConfig
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions, alone
from dynamo.router.families import LabelledRouter, router_families
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.placement import Placement
from dynamo.router.workers import Workers
from dynamo.runtime import Context, DistributedRuntime, EndpointId
from dynamo.runtime.membership import Membership
from dynamo.runtime.metrics import MetricFamily
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

_OVERRIDES = {
    "overlap_score_weight": "overlap_weight",
    "overlap_score_credit": "overlap_weight",
    "router_temperature": "temperature",
}


class StandaloneRouter:
    """Routes to the endpoint's workers from `start` to `close`.

    If they are decode workers, prefill workers of their namespace compute prompts, as behind a frontend.
    """

    def __init__(
        self, runtime: DistributedRuntime, endpoint: EndpointId, config: RoutingConfig, block_size: int | None = None
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._block_size = block_size
        self._workers = Workers(runtime, endpoint, self._card_changed)
        self._core: KvAwareRouter | None = None
        self._core_started = asyncio.Event()
        self._warned = False
        self._model = ""
        self.handoffs: Handoffs | None = None
        """The hand-offs of the model whose decode worker was seen first: an endpoint serves one model."""
        self._prefills = Prefills(runtime, config)
        self._roles = Membership(runtime.discovery, self._prefills.changed, path=endpoint.namespace, cards=True)
        self._deliveries: WeakSet[Delivery] = WeakSet()
        """Those under way. Weak references suffice: their streams and retries hold them."""

    async def start(self) -> StandaloneRouter:
        """Return when all current workers are known and the block size is given or read from a model card."""
        await self._runtime.start()
        await self._workers.start()
        await self._roles.start()
        if self._block_size is not None:
            self._start_core(self._block_size)
        else:
            await self._core_started.wait()
        return self

    async def close(self) -> None:
        await self._workers.close()
        await self._roles.close()
        for delivery in list(self._deliveries):
            await delivery.close()
        await self._prefills.close()
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
    ) -> None:
        """Deliver a request and push its stream into `sink`. Raises when there is no instance to send it to."""
        handed_over = request.prefill_result is not None or request.bootstrap_info is not None
        delivery = Delivery(
            partial(self.core.place, cost=override),
            self.core.instances,
            request,
            context,
            sink,
            DeliveryOptions(
                watch=self.core.watch,
                backoff=self.core.backoff,
                beside=self.handoffs.begin if self.handoffs and not handed_over else alone,
            ),
        )
        self._deliveries.add(delivery)
        try:
            await delivery.start()
        except BaseException:
            await delivery.close()
            raise

    async def reserve(
        self, request: PreprocessedRequest, request_id: str, override: CostConfig | None = None, *, learn: bool
    ) -> Placement:
        """Place a request that the caller will send itself. Nothing is sent for it, not even prefix copies."""
        place = partial(self.core.place, request, request_id=request_id, cost=override, copies=False, learn=learn)
        return await self.core.instances.reach(place, set())

    def override(self, given: Mapping[str, Any] | None) -> CostConfig | None:
        """The cost settings of a request's `router_config_override`; an InvalidArgument names what is wrong."""
        if not given:
            return None
        if not isinstance(given, Mapping):
            raise InvalidArgument(f"router_config_override must be an object, not {type(given).__name__}")
        values: dict[str, float] = {}
        for name, value in given.items():
            if name not in _OVERRIDES:
                raise InvalidArgument(f"router_config_override has no '{name}'; it knows {', '.join(_OVERRIDES)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidArgument(f"router_config_override.{name} must be a number, not {value!r}")
            values[_OVERRIDES[name]] = value
        return structs.replace(self._config.cost, **values)

    def overlap_scores(self, request: PreprocessedRequest) -> dict[str, Any]:
        """How much of the prompt each rank holds, per tier; slower tiers are also counted from the first block."""
        choice = self.core.peek(request, include_busy=True)
        rows = [
            _overlap_row(candidate.worker, candidate.overlap, candidate.cached_blocks)
            for candidate in choice.candidates()
        ]
        return {"block_size": self.block_size, "num_blocks": choice.prompt_blocks, "workers": rows}

    def families(self) -> list[MetricFamily]:
        """The router's metrics; `model` is that of the worker seen first."""
        if self._core is None:
            return []
        kind = WorkerType.Decode if self.handoffs else WorkerType.Aggregated
        return router_families(
            [LabelledRouter(self._core, self._model, self._runtime.instance_id, kind, self.block_size)]
        )

    def _card_changed(self, instance_id: int, card: ModelCard) -> None:
        self._model = self._model or card.name
        if card.worker_type is WorkerType.Decode and self.handoffs is None:
            self.handoffs = Handoffs(self._prefills.pool(card.name), self._config.handoff)
        if self._block_size is None:
            self._block_size = card.kv_cache_block_size
            self._start_core(self._block_size)
        elif card.kv_cache_block_size != self._block_size and not self._warned:
            self._warned = True
            log.warning(
                "worker %s has blocks of %d tokens, this router looks for blocks of %d: nothing it caches will be "
                "found, and it is chosen by load only",
                worker_name(instance_id), card.kv_cache_block_size, self._block_size,
            )  # fmt: skip

    def _start_core(self, block_size: int) -> None:
        if self._core is None:
            workers = self._workers
            self._core = KvAwareRouter(self._config, workers.instances, self._runtime, block_size, workers.runtime_of)
            self._core.start()
            self._core_started.set()


def prompt(
    token_ids: Sequence[int], *, lora_name: str | None = None, cache_salt: str | None = None
) -> PreprocessedRequest:
    """A request for a prompt alone; an InvalidArgument names what is wrong with it."""
    fields = {"token_ids": token_ids, "routing": {"lora_name": lora_name, "cache_salt": cache_salt}}
    try:
        return PreprocessedRequest.from_dict(fields)
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
