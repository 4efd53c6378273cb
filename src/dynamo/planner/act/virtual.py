"""Another program starts and drains workers: it follows keys in etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.parts import ActorError, PoolOrder
from dynamo.runtime.discovery.etcd.config import EtcdConfig
from dynamo.runtime.discovery.etcd.gateway import Gateway, Outage, Refused
from dynamo.runtime.discovery.etcd.messages import EtcdReply, RangeAnswer, range_end

_GIVEN_UP_SECONDS = 1800.0
_POLL_SECONDS = 1.0


class PlannerDecision(Struct, frozen=True, kw_only=True):
    """A decision as the keys hold it; -1 is unknown."""

    num_prefill_workers: int = -1
    num_decode_workers: int = -1
    decision_id: int = -1


class VirtualConnector:
    """ai-dynamo's keys in etcd: this side writes what it wants, and the other side writes when it is done."""

    def __init__(self, config: EtcdConfig, namespace: str) -> None:
        self._gateway = Gateway(config)
        self.root = f"v1/{namespace}/planner/"

    async def __aenter__(self) -> Self:
        self._gateway.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._gateway.close()

    async def get(self) -> PlannerDecision:
        return decision_of(await self.values())

    async def values(self) -> dict[str, int]:
        """The value of each key that is there; one that holds no number is rejected."""
        root = self.root.encode()
        try:
            answer = await self._gateway.call("/v3/kv/range", {"key": root, "range_end": range_end(root)}, RangeAnswer)
            return {kv.key.removeprefix(root).decode(): _number(kv.key, kv.value) for kv in answer.kvs}
        except (Outage, Refused, UnicodeDecodeError) as error:
            raise ActorError(f"etcd at {self._gateway.where}: {error}") from error

    async def put(self, values: Mapping[str, int]) -> None:
        """Write all values in one transaction."""
        puts = [
            {"request_put": {"key": (self.root + name).encode(), "value": str(value).encode()}}
            for name, value in values.items()
        ]
        try:
            await self._gateway.call("/v3/kv/txn", {"success": puts}, EtcdReply)
        except (Outage, Refused) as error:
            raise ActorError(f"etcd at {self._gateway.where}: {error}") from error


class VirtualActor:
    """Writes decisions for another program. The next one waits until it confirms the last, at most half an hour."""

    def __init__(self, connector: VirtualConnector, config: PlannerConfig) -> None:
        self._connector = connector
        self._roles = config.roles
        self._decided_at: float | None = None
        self._last_id = 0

    async def read(self) -> Mapping[Role, PoolOrder]:
        values = await self._connector.values()
        self._last_id = max(self._last_id, values.get("decision_id", 0))
        waits = values.get("decision_id", 0) > values.get("scaled_decision_id", -1) and "decision_id" in values
        now = asyncio.get_running_loop().time()
        if waits and self._decided_at is None:
            self._decided_at = now
        elif not waits:
            self._decided_at = None
        waits = waits and self._decided_at is not None and now - self._decided_at < _GIVEN_UP_SECONDS
        return {
            role: PoolOrder(wanted=None if (count := values.get(_key(role), -1)) < 0 else count, in_progress=waits)
            for role in self._roles
        }

    async def scale(self, workers: Mapping[Role, int]) -> None:
        values = {_key(role): count for role, count in workers.items()}
        await self._connector.put(values | {"decision_id": self._last_id + 1})
        self._last_id += 1
        self._decided_at = None


class VirtualConnectorClient:
    """The client of a program that starts and stops workers as a planner asks.

    `async with VirtualConnectorClient(EtcdConfig.from_env(os.environ), "dynamo") as client: await client.wait()`
    """

    def __init__(self, config: EtcdConfig, namespace: str) -> None:
        self._connector = VirtualConnector(config, namespace)

    async def __aenter__(self) -> Self:
        await self._connector.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connector.__aexit__()

    async def get(self) -> PlannerDecision:
        return await self._connector.get()

    async def wait(self) -> PlannerDecision:
        """Wait for the next decision that is not complete; an outage of etcd is waited out."""
        while True:
            with contextlib.suppress(ActorError):
                values = await self._connector.values()
                if values.get("decision_id", -1) > values.get("scaled_decision_id", -1):
                    return decision_of(values)
            await asyncio.sleep(_POLL_SECONDS)

    async def complete(self, decision: PlannerDecision) -> None:
        await self._connector.put({"scaled_decision_id": decision.decision_id})


def decision_of(values: Mapping[str, int]) -> PlannerDecision:
    return PlannerDecision(
        num_prefill_workers=values.get("num_prefill_workers", -1),
        num_decode_workers=values.get("num_decode_workers", -1),
        decision_id=values.get("decision_id", -1),
    )


def _key(role: Role) -> str:
    return f"num_{role}_workers"


def _number(key: bytes, value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise ActorError(f"etcd: {key.decode(errors='replace')} holds {value[:40]!r}, which is no number") from None
