"""The workers of one endpoint: its instances, and the model card of each."""

from __future__ import annotations

from collections.abc import Callable

from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.runtime import DistributedRuntime, EndpointId
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.membership import Member, Membership


class Workers:
    """Follows discovery from `start` to `close`. `on_card` gets the card of each worker that can be reached."""

    def __init__(
        self, runtime: DistributedRuntime, endpoint: EndpointId, on_card: Callable[[int, ModelCard], None]
    ) -> None:
        self.instances = InstanceSet(str(endpoint), runtime.plane)
        self._members = Membership(runtime.discovery, self._changed, path=endpoint.path, cards=True)
        self._on_card = on_card
        self._runtimes: dict[int, ModelRuntimeConfig] = {}

    async def start(self) -> None:
        """Return once all current workers are known."""
        await self._members.start()

    async def close(self) -> None:
        await self._members.close()
        await self.instances.close()

    def runtime_of(self, instance_id: int) -> ModelRuntimeConfig:
        return self._runtimes.get(instance_id) or ModelRuntimeConfig()

    def _changed(self, before: Member, after: Member) -> None:
        worker, known = after.instance_id, self.runtime_of(after.instance_id)
        if after.card is None:
            self._runtimes.pop(worker, None)
        elif after.card != before.card:
            self._runtimes[worker] = after.card.runtime_config
            if after.card.runtime_config != known:
                self.instances.refresh(worker)
        if after.instance != before.instance:
            self.instances.update(worker, after.instance)
        if after.card and after.instance and (after.card != before.card or before.instance is None):
            self._on_card(worker, after.card)
