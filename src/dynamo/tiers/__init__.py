"""KV blocks that outlive the device's cache: in memory, then in a folder, used only where measured to be faster."""

from dynamo.tiers.chain import TierChain
from dynamo.tiers.costs import PrefillCost, TierCosts
from dynamo.tiers.folder import FolderTier, TierFolderError
from dynamo.tiers.memory import MemoryTier
from dynamo.tiers.segment import DamagedSegment, KvSegment
from dynamo.tiers.store import TierFetch, TierStore

__all__ = [
    "DamagedSegment",
    "FolderTier",
    "KvSegment",
    "MemoryTier",
    "PrefillCost",
    "TierChain",
    "TierCosts",
    "TierFetch",
    "TierFolderError",
    "TierStore",
]
