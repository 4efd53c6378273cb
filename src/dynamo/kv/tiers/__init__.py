"""KV blocks that outlive the device's cache: in memory, then in a folder, used only where measured to be faster."""

from dynamo.kv.tiers.chain import TierChain
from dynamo.kv.tiers.costs import TierCosts
from dynamo.kv.tiers.folder import FolderTier, TierFolderError
from dynamo.kv.tiers.memory import MemoryTier
from dynamo.kv.tiers.segment import DamagedSegment, KvSegment
from dynamo.kv.tiers.store import TierFetch, TierStore

__all__ = [
    "DamagedSegment",
    "FolderTier",
    "KvSegment",
    "MemoryTier",
    "TierChain",
    "TierCosts",
    "TierFetch",
    "TierFolderError",
    "TierStore",
]
