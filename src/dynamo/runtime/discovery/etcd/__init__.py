"""Discovery between machines: etcd v3, spoken over its HTTP/JSON gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

from dynamo.runtime.discovery.base import Change, DiscoveryError, check_key
from dynamo.runtime.discovery.etcd.config import EtcdConfig
from dynamo.runtime.discovery.etcd.gateway import Gateway, NoAnswer, Outage, Refused, TlsFailure
from dynamo.runtime.discovery.etcd.messages import RangeAnswer, range_end
from dynamo.runtime.discovery.etcd.registration import Registration
from dynamo.runtime.discovery.etcd.watch import EtcdWatch, readable

__all__ = ["EtcdConfig", "EtcdDiscovery"]

STARTING_TRIES = 5
"""An etcd that is slow to answer, on a busy machine, does not keep a process from starting."""


class EtcdDiscovery:
    """One process's view of an etcd cluster."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._gateway = Gateway(config)
        self._registration = Registration(self._gateway, config)
        self._closed = asyncio.Event()

    async def start(self) -> None:
        self._gateway.open()
        try:
            # Reading first: a lease is granted to anyone, even where the keys are forbidden.
            await _answered(partial(self._read, "", limit=1))
            await _answered(self._registration.start)
        except BaseException as why:
            await self._gateway.close()
            if isinstance(why, Outage | Refused):
                raise DiscoveryError(self._advice(why)) from why
            raise

    async def put(self, key: str, value: bytes) -> None:
        check_key(key)
        await self._registration.put(key, value)

    async def delete(self, key: str) -> None:
        await self._registration.delete(key)

    async def get_prefix(self, prefix: str) -> dict[str, bytes]:
        try:
            answer = await self._read(prefix)
        except (Outage, Refused) as why:
            raise DiscoveryError(self._advice(why)) from why
        root = self._config.prefix.encode()
        named = ((readable(kv.key, root), kv.value) for kv in answer.kvs)
        return {key: value for key, value in named if key is not None}

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        if self._closed.is_set():
            raise DiscoveryError("this discovery is closed")
        watch = EtcdWatch(self._gateway, self._config, prefix, self._closed)
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                yield change

    async def close(self) -> None:
        self._closed.set()
        await self._registration.close()
        await self._gateway.close()

    async def _read(self, prefix: str, limit: int = 0) -> RangeAnswer:
        start = (self._config.prefix + prefix).encode()
        body = {"key": start or b"\0", "range_end": range_end(start), "limit": limit}
        return await self._gateway.call("/v3/kv/range", body, RangeAnswer)

    def _advice(self, why: Outage | Refused) -> str:
        where = self._gateway.where
        text = str(why)
        if isinstance(why, TlsFailure):
            return (
                f"cannot reach etcd at {where}: TLS failed: {text};"
                " check the scheme, ETCD_AUTH_CA, ETCD_AUTH_CLIENT_CERT and ETCD_AUTH_CLIENT_KEY"
            )
        if isinstance(why, Outage):
            return f"cannot reach etcd at {where}: {text}; start it, or use --discovery-backend file"
        if "authentication failed" in text:
            return (
                f"etcd at {where} refuses the login of user {self._config.username!r}: {text};"
                " check ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD"
            )
        if "user name is empty" in text:
            return f"etcd at {where} wants a login: set ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD"
        if "permission denied" in text:
            return (
                f"etcd at {where}: user {self._config.username!r} may not use the keys below {self._config.prefix!r};"
                " grant it a role that may"
            )
        return f"etcd at {where} refuses: {text}"


async def _answered(call: Callable[[], Awaitable[object]]) -> None:
    """Try again where etcd is there but does not answer in time."""
    for _ in range(STARTING_TRIES - 1):
        try:
            await call()
            return
        except NoAnswer:
            continue
    await call()
