"""Sends prefixes that many requests share to idle workers, so that later requests find them cached there."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.choose import Choice
from dynamo.router.choice.copies import LEAST_SHARING, LEAST_TOKENS, RecentCopies, idle_candidates, prefix_of
from dynamo.router.choice.fleet import RankTable
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions
from dynamo.router.load.active_requests import ActiveRequests, KvPlacement
from dynamo.router.stats import RouterStats
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.stream import FirstAnswer

log = logging.getLogger(__name__)


class PrefixCopies:
    def __init__(self, active: ActiveRequests, instances: InstanceSet, ranks: RankTable, stats: RouterStats) -> None:
        self._active = active
        self._instances = instances
        self._ranks = ranks
        self._stats = stats
        self._recent = RecentCopies()
        self._sending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop sending; copies that were already sent are still computed."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def consider(self, request: Any, placement: KvPlacement, choice: Choice, request_id: str) -> None:
        """A request was just placed: send its prefix to idle workers if enough requests share it."""
        if not placement.hashes or not isinstance(request, PreprocessedRequest):
            return
        if request.kv_transfer_params or request.extra_args:
            return  # What a worker caches for it depends on more than its tokens, adapter and salt.
        block_size = choice.fleet.block_size
        depth, sharing = self._active.shared_prefix(placement, LEAST_SHARING)
        if depth * block_size < LEAST_TOKENS:
            return
        now = asyncio.get_running_loop().time()
        last = placement.hashes[depth - 1]
        for at, missing in idle_candidates(choice, depth, sharing, self._recent.sent(last, now)):
            worker = choice.fleet.workers[at]
            self._recent.add(worker, last, now)
            copy = self._active.reserve(
                self._instances.channel(worker.worker_id),
                worker,
                placement.hashes[:depth],
                now=now,
                prompt_tokens=0,
                prefill_tokens=missing * block_size,
                copy=True,
                dp_rank=self._ranks.explicit_rank(worker),
            )
            self._stats.copies += 1
            self._stats.copied_blocks += missing
            log.debug(
                "request %s: worker %s rank %d is idle and computes its first %d blocks ahead: %d running requests "
                "share them", request_id, worker_name(worker.worker_id), worker.dp_rank, depth, sharing,
            )  # fmt: skip
            self._send(prefix_of(request, depth * block_size), copy, f"copy-{copy.key}-of-{request_id}")

    def _send(self, prefix: PreprocessedRequest, copy: KvPlacement, name: str) -> None:
        task = asyncio.create_task(self._compute(prefix, copy, name))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _compute(self, prefix: PreprocessedRequest, copy: KvPlacement, name: str) -> None:
        async def reserved(*_: Any, **__: Any) -> KvPlacement:
            return copy

        answer, options = FirstAnswer(), DeliveryOptions(pinned=copy.instance_id)
        try:
            try:
                await Delivery(reserved, self._instances, prefix, Context(name), answer, options).start()
            except BaseException:
                copy.release()
                raise
            await answer.value  # ignored: only its effect on the worker's cache matters
        except DynamoException as error:
            log.debug("worker %s computes no prefix ahead: %s", worker_name(copy.instance_id), error)
        except Exception:
            log.exception("a prefix could not be computed ahead")
