"""One operator at a time, by a Lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime

from msgspec import Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import Conflict, KubernetesError, ObjectNotFound
from dynamo.kubernetes.operator.kinds import LEASES

log = logging.getLogger(__name__)

DURATION = 15
_RENEW = 5.0


class LeaseSpec(Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    renew_time: str | None = None
    lease_duration_seconds: int | None = None


class _Metadata(Struct, frozen=True, rename="camel"):
    resource_version: str


class HeldLease(Struct, frozen=True):
    metadata: _Metadata
    spec: LeaseSpec = LeaseSpec()


class LeaderLease:
    """`acquire`, then `keep` beside the work: it returns when the lease is lost, and the work must stop."""

    def __init__(self, api: KubernetesApi, name: str, identity: str) -> None:
        self._api, self._name, self._identity = api, name, identity

    async def acquire(self) -> None:
        """Somebody else's lease counts until it was not renewed for its duration by this process's own clock."""
        seen: LeaseSpec | None = None
        since = 0.0
        clock = asyncio.get_running_loop().time
        waiting = False
        while True:
            try:
                lease = await self._read()
                if lease is None:
                    await self._api.create(LEASES, {"metadata": {"name": self._name}, "spec": self._spec()})
                    return
                if lease.spec != seen:
                    seen, since = lease.spec, clock()
                duration = lease.spec.lease_duration_seconds or DURATION
                if lease.spec.holder_identity in (None, "", self._identity) or clock() - since > duration:
                    await self._write(self._spec(), lease.metadata.resource_version)
                    return
                if not waiting:
                    log.info("%s leads; waiting", lease.spec.holder_identity)
                    waiting = True
            except Conflict:
                continue
            except KubernetesError as error:
                log.warning("cannot take the lease %s: %s; trying again", self._name, error)
            await asyncio.sleep(1)

    async def keep(self) -> None:
        """Renew until that was impossible for two thirds of the duration, or somebody else has it."""
        clock = asyncio.get_running_loop().time
        renewed = clock()
        while clock() - renewed < DURATION * 2 / 3:
            await asyncio.sleep(_RENEW if clock() - renewed < _RENEW else 1)
            try:
                lease = await self._read()
                if lease is None or lease.spec.holder_identity != self._identity:
                    break
                await self._write(self._spec(), lease.metadata.resource_version)
                renewed = clock()
            except KubernetesError as error:
                log.warning("cannot renew the lease %s: %s", self._name, error)
        log.error("the lease %s is lost", self._name)

    async def release(self) -> None:
        """So that the next one need not wait."""
        with contextlib.suppress(KubernetesError):
            lease = await self._read()
            if lease and lease.spec.holder_identity == self._identity:
                await self._write({"holderIdentity": ""}, lease.metadata.resource_version)

    async def _read(self) -> HeldLease | None:
        try:
            return await self._api.get(LEASES, self._name, HeldLease)
        except ObjectNotFound:
            return None

    async def _write(self, spec: dict[str, object], version: str) -> None:
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        await self._api.patch(LEASES, self._name, body)

    def _spec(self) -> dict[str, object]:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION, "renewTime": moment}
