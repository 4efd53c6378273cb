"""The prefill workers of one model: which there are, the router that chooses among them, and what waits at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from dynamo.handoff.pairing import COMPUTES_PROMPTS, Peer, partners
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, WorkerType
from dynamo.protocols.engine import PreprocessedRequest, Session
from dynamo.protocols.instance import Instance
from dynamo.runtime.instances import InstanceSet

if TYPE_CHECKING:
    # A router imports this module: at run time there would be no end to it.
    from dynamo.router.placement import Placement, Router


class PrefillPool:
    """Its owner puts and removes the workers of both roles, and starts and closes the router."""

    def __init__(self, instances: InstanceSet) -> None:
        self.instances = instances
        self.router: Router | None = None
        self._prefills: dict[int, Peer] = {}
        self._decodes: dict[int, Peer] = {}
        self._partners: dict[int, frozenset[int]] = {}
        """The prefill workers that each decode worker can take from; cleared when a worker joins or leaves."""
        self._waiting: Counter[int] = Counter()
        """Prompt tokens that this process has sent to each worker, of either role, and that are not computed yet."""
        self._sent: Counter[int] = Counter()
        """All that it has sent to each."""

    def __len__(self) -> int:
        return len(self._prefills)

    def put_prefill(self, peer: Peer, instance: Instance | None) -> None:
        self._prefills[peer.instance_id] = peer
        self._partners.clear()
        if instance is None:
            self.instances.remove(peer.instance_id)
        else:
            self.instances.put(instance)

    def remove_prefill(self, instance_id: int) -> None:
        self._prefills.pop(instance_id, None)
        self._partners.clear()
        self._sent.pop(instance_id, None)
        self.instances.remove(instance_id)

    def put_decode(self, peer: Peer) -> None:
        if peer.card.worker_type is WorkerType.Decode:
            self._decodes[peer.instance_id] = peer
            self._partners.pop(peer.instance_id, None)

    def remove_decode(self, instance_id: int) -> None:
        self._decodes.pop(instance_id, None)
        self._partners.pop(instance_id, None)
        self._sent.pop(instance_id, None)

    def prefills(self) -> list[Peer]:
        return list(self._prefills.values())

    def decodes(self) -> list[Peer]:
        return list(self._decodes.values())

    @property
    def serves(self) -> bool:
        """Whether some worker leaves prompts to others, so that requests have to be decided on."""
        return bool(self._decodes)

    def receives(self, decode_id: int) -> bool:
        return decode_id in self._decodes

    def computes_prompts(self, decode_id: int) -> bool:
        decode = self._decodes.get(decode_id)
        return decode is None or decode.card.runtime_config.runtime_data.get(COMPUTES_PROMPTS) is not False

    def partners_of(self, decode_id: int) -> list[int]:
        """The prefill workers that can hand over to this decode worker now."""
        decode = self._decodes.get(decode_id)
        if decode is None:
            return []
        paired = self._partners.get(decode_id)
        if paired is None:
            paired = self._partners[decode_id] = partners(decode, self._prefills.values())
        return [id for id in self.instances.routable() if id in paired] if paired else []

    def card_of(self, instance_id: int) -> ModelCard | None:
        peer = self._prefills.get(instance_id)
        return peer.card if peer else None

    def runtime_of(self, instance_id: int) -> ModelRuntimeConfig:
        card = self.card_of(instance_id)
        return card.runtime_config if card else ModelRuntimeConfig()

    async def place(
        self,
        decode_id: int,
        request: PreprocessedRequest,
        *,
        request_id: str,
        pinned: int | None = None,
        avoid: Collection[int] = (),
        session: Session | None = None,
    ) -> Placement:
        """Book the prompt at a prefill worker that can hand over to this decode worker."""
        allowed = set(self.partners_of(decode_id)).difference(avoid)
        if self.router is None or not allowed:
            raise self.instances.none_reachable()
        avoid = () if pinned is not None else [id for id in self.instances.ids() if id not in allowed]
        return await self.router.place(request, request_id=request_id, pinned=pinned, avoid=avoid, session=session)

    def waiting(self, instance_id: int) -> int:
        return self._waiting[instance_id]

    def sent(self, instance_id: int) -> int:
        """Prompt tokens that this process has sent to a worker to compute, since it joined."""
        return self._sent[instance_id]

    def batch_tokens(self, instance_id: int) -> int:
        """The most prompt tokens that a prefill worker computes in one pass."""
        return self.runtime_of(instance_id).max_num_batched_tokens or 8192

    def add_waiting(self, instance_id: int, tokens: int) -> None:
        if tokens > 0:
            self._sent[instance_id] += tokens
        left = self._waiting[instance_id] + tokens
        if left > 0:
            self._waiting[instance_id] = left
        else:
            del self._waiting[instance_id]
