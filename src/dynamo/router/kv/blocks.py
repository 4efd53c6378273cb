"""The blocks anybody holds: what the shelves of all workers share."""

from __future__ import annotations

from dynamo.protocols.kv import Tier
from dynamo.router.kv.names import CommonNames


class Blocks:
    """Every block is known by its sequence hash, which names the whole prefix up to it."""

    __slots__ = ("holders", "names", "parents")

    def __init__(self) -> None:
        self.holders: dict[Tier, dict[int, int]] = {tier: {} for tier in Tier}
        """Per tier and block, the workers as bits."""
        self.parents: dict[int, int | None] = {}
        """The block before each block that is held in any tier."""
        self.names = CommonNames()

    def held(self, sequence: int) -> bool:
        return any([sequence in holders for holders in self.holders.values()])
