"""KV-aware routing: hashes, the index of who holds what, the load book and the cost of a choice.

What is exported here is the pure core: no sockets, no tasks, no clock; callers bring bytes, time and random numbers.
`follow` keeps the index true, `replicas` exchanges bookings, `router` puts it all together.
"""

from dynamo.kv.hashing import local_hashes, prompt_hashes, salt_seed, sequence_hashes
from dynamo.protocols.kv import WorkerRank
from dynamo.router.kv.choice.cost import Candidate, Choice, CostConfig, choose
from dynamo.router.kv.choice.fleet import Capacity, Fleet
from dynamo.router.kv.index.approximate import ApproximateIndex
from dynamo.router.kv.index.index import Index
from dynamo.router.kv.index.overlaps import Overlap, Overlaps
from dynamo.router.kv.load.book import LoadBook, Loads
from dynamo.router.kv.sync.cursor import Cursor, Order

__all__ = [
    "ApproximateIndex",
    "Candidate",
    "Capacity",
    "Choice",
    "CostConfig",
    "Cursor",
    "Fleet",
    "Index",
    "LoadBook",
    "Loads",
    "Order",
    "Overlap",
    "Overlaps",
    "WorkerRank",
    "choose",
    "local_hashes",
    "prompt_hashes",
    "salt_seed",
    "sequence_hashes",
]
