"""This process's records in etcd: keeps their lease alive and puts them again when etcd has lost them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dynamo.process.backoff import Backoff
from dynamo.runtime.discovery.base import DiscoveryError
from dynamo.runtime.discovery.etcd.config import RETRY_SECONDS, EtcdConfig
from dynamo.runtime.discovery.etcd.gateway import Gateway, Outage, Refused
from dynamo.runtime.discovery.etcd.messages import EtcdHeader, EtcdReply, KeepAliveAnswer, LeaseAnswer

log = logging.getLogger("dynamo.runtime.discovery.etcd")

PATIENCE = 2.0  # seconds a caller waits for its change to be stored; after that the task finishes it in the background


class Registration:
    """The records this process wants in etcd, and the task that keeps them there.

    Only that task writes changes, so they reach etcd in order, now or after an outage.
    """

    def __init__(self, gateway: Gateway, config: EtcdConfig) -> None:
        self._gateway = gateway
        self._config = config
        self._own: dict[str, bytes] = {}
        self._unwritten: dict[str, None] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._wake = asyncio.Event()
        self._lease: int | None = None
        self._ttl = float(config.lease_ttl)
        self._beat_at = 0.0
        self._seen = EtcdHeader()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._take_lease()
        self._task = asyncio.create_task(self._run(), name="etcd lease")

    async def put(self, key: str, value: bytes) -> None:
        self._reject_unless_running()
        self._own[key] = value
        await self._wait_written(key)

    async def delete(self, key: str) -> None:
        if self._task and (self._own.pop(key, None) is not None or key in self._unwritten):
            await self._wait_written(key)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait([task])
        self._release_callers()
        if self._lease is not None and not self._gateway.down:
            try:
                await self._gateway.call("/v3/lease/revoke", {"ID": self._lease}, EtcdReply)
            except (Outage, Refused) as why:
                log.debug("the lease is left to expire: %s", why)
        self._lease = None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        pauses = Backoff(*RETRY_SECONDS)
        refusal = ""
        while True:
            self._wake.clear()
            try:
                await self._sync()
                pauses.reset()
                refusal = ""
                if not self._unwritten and self._lease is not None:
                    try:
                        async with asyncio.timeout_at(self._beat_at):
                            await self._wake.wait()
                    except TimeoutError:
                        pass
                continue
            except Outage:
                pass
            except Refused as why:
                if str(why) != refusal:
                    refusal = str(why)
                    log.warning("etcd refuses this process's registration: %s; trying again", why)
            except Exception:
                # Without this task the process would vanish from the store while it serves.
                log.exception("keeping this process registered failed; trying again")
            self._release_callers()
            self._beat_at = clock()
            await asyncio.sleep(pauses.pause())

    async def _sync(self) -> None:
        if self._lease is None:
            await self._take_lease()
            self._unwritten.update(dict.fromkeys(self._own))
        if asyncio.get_running_loop().time() >= self._beat_at:
            await self._keep_alive()
        refused: Refused | None = None
        for key in list(self._unwritten):
            if self._lease is None:
                return
            try:
                await self._write(key, self._lease)
            except Refused as why:
                if why.lease_is_lost:
                    self._lease = None
                    return
                refused = why
                if waiting := self._waiting.pop(key, None):
                    self._unwritten.pop(key, None)
                    self._own.pop(key, None)
                    for caller in waiting:
                        if not caller.done():
                            caller.set_exception(DiscoveryError(f"etcd refuses {key}: {why}"))
                    refused = None
        if refused:
            raise refused

    async def _take_lease(self) -> None:
        now = asyncio.get_running_loop().time()
        answer = await self._gateway.call("/v3/lease/grant", {"TTL": self._config.lease_ttl}, LeaseAnswer)
        if answer.ID == 0:
            raise Refused("it grants no lease")
        self._lease = answer.ID
        self._ttl = float(answer.TTL or self._config.lease_ttl)
        self._beat_at = now + self._ttl / 3
        self._seen = answer.header

    async def _keep_alive(self) -> None:
        assert self._lease is not None
        lease = self._lease
        now = asyncio.get_running_loop().time()
        answer = (await self._gateway.call("/v3/lease/keepalive", {"ID": lease}, KeepAliveAnswer)).result
        if answer.TTL <= 0:
            self._lease = None
            return
        self._beat_at = now + self._ttl / 3
        # An older copy of the store came back, with our lease but perhaps without what we put since.
        if answer.header.cluster_id != self._seen.cluster_id or answer.header.revision < self._seen.revision:
            self._unwritten.update(dict.fromkeys(self._own))
        self._seen = answer.header

    async def _write(self, key: str, lease: int) -> None:
        value = self._own.get(key)
        name = self._name(key)
        if value is not None:
            await self._gateway.call("/v3/kv/put", {"key": name, "value": value, "lease": lease}, EtcdReply)
        else:
            body: dict[str, Any] = {
                "compare": [{"key": name, "target": "LEASE", "result": "EQUAL", "lease": lease}],
                "success": [{"request_delete_range": {"key": name}}],
            }
            await self._gateway.call("/v3/kv/txn", body, EtcdReply)
        if self._own.get(key) == value:
            self._unwritten.pop(key, None)
            for caller in self._waiting.pop(key, ()):
                if not caller.done():
                    caller.set_result(None)

    def _mark_unwritten(self, key: str) -> None:
        self._unwritten[key] = None
        self._wake.set()

    async def _wait_written(self, key: str) -> None:
        self._mark_unwritten(key)
        if self._gateway.down:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(written)
        try:
            await asyncio.wait([written], timeout=PATIENCE)
            if written.done():
                written.result()
        finally:
            if written in (waiting := self._waiting.get(key, [])):
                waiting.remove(written)

    def _release_callers(self) -> None:
        for waiting in self._waiting.values():
            for caller in waiting:
                if not caller.done():
                    caller.set_result(None)
        self._waiting.clear()

    def _name(self, key: str) -> bytes:
        return (self._config.prefix + key).encode()

    def _reject_unless_running(self) -> None:
        if not self._task:
            raise DiscoveryError("this discovery is not started, or closed")
