"""The blocks anybody holds: what the shelves of all workers share."""

from __future__ import annotations

from dynamo.protocols.kv import Tier
from dynamo.router.kv.index.names import CommonNames
from dynamo.router.kv.index.runs import Runs


class Blocks:
    """Every block is known by its sequence hash, which names the whole prefix up to it."""

    __slots__ = ("_tables", "names", "runs")

    def __init__(self) -> None:
        self.runs: dict[Tier, Runs] = {tier: Runs() for tier in Tier}
        self.names = CommonNames()
        self._tables = tuple(runs.of for runs in self.runs.values())

    def __len__(self) -> int:
        device, *others = self._tables
        return len(device.keys() | {block for table in others for block in table}) if any(others) else len(device)

    def held(self, block: int) -> bool:
        return any([block in table for table in self._tables])

    def unknown(self, blocks: list[int]) -> bool:
        """Whether nobody holds any of them, and no name of theirs is left."""
        for table in self._tables:
            if table and not table.keys().isdisjoint(blocks):
                return False
        return not self.names.gone or self.names.gone.isdisjoint(blocks)
