"""The prefill workers of each model, and which decode workers they serve: kept up to date from discovery."""

from __future__ import annotations

import asyncio
import logging

from dynamo.handoff.pairing import Peer, mismatch
from dynamo.handoff.router.pool import PrefillPool
from dynamo.protocols.card import ModelCard, WorkerType
from dynamo.protocols.worker_name import worker_name
from dynamo.router.config import RoutingConfig
from dynamo.router.factory import make_router
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.membership import Member

log = logging.getLogger(__name__)


class Prefills:
    """One pool per model name. It has a router from its first prefill worker on, for as long as there is one."""

    def __init__(self, runtime: DistributedRuntime, config: RoutingConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._pools: dict[str, PrefillPool] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._misfits: set[int] = set()
        """Prefill workers that were named in the log."""

    def pool(self, model: str) -> PrefillPool:
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = PrefillPool(InstanceSet(f"{model} (prefill)", self._runtime.plane))
        return pool

    def changed(self, before: Member, after: Member) -> None:
        if before.card and (after.card is None or _role(after.card) != _role(before.card)):
            self._remove(before, before.card)
        if after.card:
            self._put(after, after.card)

    async def close(self) -> None:
        for pool in self._pools.values():
            self._close_router(pool)
        await asyncio.gather(*self._closing)
        for pool in self._pools.values():
            await pool.instances.close()

    def _put(self, member: Member, card: ModelCard) -> None:
        peer = Peer(instance_id=member.instance_id, namespace=member.endpoint.namespace, card=card)
        pool = self.pool(card.name)
        if card.takes_requests:
            if card.worker_type is not WorkerType.Decode:
                return
            pool.put_decode(peer)
            self._log_mismatches([peer], pool.prefills())
            return
        if not card.prefills:
            return
        if pool.card_of(peer.instance_id) is None:
            log.info("prefill worker %s of '%s' joined", worker_name(peer.instance_id), peer.card.name)
        pool.put_prefill(peer, member.instance)
        self._log_mismatches(pool.decodes(), [peer])
        if pool.router is None:
            pool.router = make_router(self._config, card, pool.instances, self._runtime, pool.runtime_of)
            pool.router.start()

    def _log_mismatches(self, decodes: list[Peer], prefills: list[Peer]) -> None:
        """Log one line for each prefill worker that a decode worker cannot continue from, whichever joined first."""
        for peer in prefills:
            if peer.instance_id in self._misfits:
                continue
            reasons = {why for decode in decodes if (why := mismatch(decode, peer)) is not None}
            if reasons:
                self._misfits.add(peer.instance_id)
                log.warning(
                    "prefill worker %s of '%s' cannot hand over to the decode workers: it has %s; "
                    "they compute their prompts themselves",
                    worker_name(peer.instance_id), peer.card.name, ", ".join(sorted(reasons)),
                )  # fmt: skip

    def _remove(self, member: Member, card: ModelCard) -> None:
        pool = self._pools.get(card.name)
        if pool is None:
            return
        if card.takes_requests:
            pool.remove_decode(member.instance_id)
            return
        pool.remove_prefill(member.instance_id)
        self._misfits.discard(member.instance_id)
        if not len(pool):
            log.info("the last prefill worker of '%s' left: decode workers compute their prompts", card.name)
            self._close_router(pool)

    def _close_router(self, pool: PrefillPool) -> None:
        router, pool.router = pool.router, None
        if router is not None:
            task = asyncio.create_task(router.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _role(card: ModelCard) -> tuple[str, WorkerType, bool]:
    return card.name, card.worker_type, card.prefills
