"""`WorkerMetricsPublisher`, with which an engine author reports to routers how busy a worker is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from dynamo.kv.messages import KV_METRICS, LOAD_REPORT_SECONDS, ActiveLoad, TierReport, subject
from dynamo.kv.publish.feed import component_of
from dynamo.runtime import Component, Context, Endpoint
from dynamo.runtime.stream import Outlet

LOAD_ENDPOINT = "load_metrics"
DEBOUNCE_SECONDS = 0.001


class WorkerMetricsPublisher:
    """Publishers of the same component and runtime share one endpoint; each reports its own ranks."""

    def __init__(self) -> None:
        self._board: LoadBoard | None = None

    async def create_endpoint(self, endpoint: Endpoint | Component) -> None:
        """Serve the latest figures at `load_metrics` of the endpoint's component, as long as the runtime lives."""
        if self._board is not None:
            raise RuntimeError("this WorkerMetricsPublisher has its endpoint already")
        component = component_of(endpoint)
        await component.runtime.start()
        key = (LoadBoard, component.namespace, component.name)
        board = component.runtime.shared(key, lambda: LoadBoard(component))
        await board.ready()
        self._board = board

    def publish(
        self,
        dp_rank: int | None = None,
        active_decode_blocks: int | None = None,
        kv_used_blocks: int | None = None,
        *,
        active_prefill_tokens: int | None = None,
        kv_total_blocks: int | None = None,
        host_weight: float | None = None,
        disk_weight: float | None = None,
        draft_tokens: int | None = None,
        accepted_tokens: int | None = None,
        tiers: Sequence[TierReport] = (),
    ) -> None:
        """Report new figures of one rank, from any thread; those not given stay, and only changes are sent.

        The weights say what a block in host memory or on disk is worth, as a share of one on the device;
        `draft_tokens` were guessed since the start, and `accepted_tokens` of them were right.
        """
        if self._board is None:
            raise RuntimeError("await create_endpoint(endpoint) before publishing load")
        figures = {
            "active_decode_blocks": active_decode_blocks,
            "kv_used_blocks": kv_used_blocks,
            "active_prefill_tokens": active_prefill_tokens,
            "kv_total_blocks": kv_total_blocks,
            "draft_tokens": draft_tokens,
            "accepted_tokens": accepted_tokens,
        }
        weights = {"host_weight": host_weight, "disk_weight": disk_weight}
        for name, weight in weights.items():
            if weight is not None and not 0 <= weight <= 1:
                raise ValueError(f"{name} must be a number from 0 to 1, not {weight!r}")
        given = {name: value for name, value in figures.items() if value is not None}
        if not given:
            raise ValueError(f"give at least one of {', '.join(figures)}")
        for name, value in (("dp_rank", dp_rank or 0), *given.items()):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
                raise ValueError(f"{name} must be an integer of at least 0, not {value!r}")
        known: dict[str, Any] = {name: value for name, value in weights.items() if value is not None}
        if tiers:
            known["tiers"] = list(tiers)
        self._board.post(dp_rank or 0, given | known)


class LoadBoard:
    """The latest figures of one instance's ranks: sent on change and every few seconds, and served on request."""

    def __init__(self, component: Component) -> None:
        self._component = component
        self._worker_id = component.runtime.instance_id
        self._subject = subject((component.namespace, component.name), KV_METRICS)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._latest: dict[int, ActiveLoad] = {}
        self._changed: set[int] = set()
        self._settled = asyncio.Event()
        component.runtime.own(self._serve(), f"the endpoint {LOAD_ENDPOINT}")
        component.runtime.own(self._repeat(), "repeating the load")

    async def ready(self) -> None:
        """Wait until the endpoint can be found, or has failed to come up."""
        await self._settled.wait()

    def post(self, dp_rank: int, given: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.post, dp_rank, given)
            return
        before = self._latest.get(dp_rank) or ActiveLoad(worker_id=self._worker_id, dp_rank=dp_rank)
        now = msgspec.structs.replace(before, **given)
        if now == before:
            return
        self._latest[dp_rank] = now
        if not self._changed:
            # A worker may report each request that comes or goes: changes within a moment are sent once.
            self._loop.call_later(DEBOUNCE_SECONDS, self._send)
        self._changed.add(dp_rank)

    def figures(self) -> dict[str, Any]:
        """What `load_metrics` answers."""
        ranks = [msgspec.to_builtins(load) | {"dp_rank": rank} for rank, load in sorted(self._latest.items())]
        for figures in ranks:
            del figures["worker_id"]
        return {"worker_id": self._worker_id, "ranks": ranks}

    def _send(self) -> None:
        changed, self._changed = self._changed, set()
        for dp_rank in sorted(changed):
            self._component.runtime.events.publish(self._subject, msgspec.msgpack.encode(self._latest[dp_rank]))

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(LOAD_REPORT_SECONDS)
            self._changed.update(self._latest)
            self._send()

    async def _serve(self) -> None:
        def handle(request: Any, context: Context, outlet: Outlet) -> None:
            outlet.item(self.figures())
            outlet.end()

        endpoint = self._component.endpoint(LOAD_ENDPOINT)
        try:
            await self._component.runtime.events.announce()
            await endpoint.serve(handle, graceful_shutdown=False, auxiliary=True, on_found=self._settled.set)
        finally:
            self._settled.set()
