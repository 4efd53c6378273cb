"""KV blocks: their hashes, what workers publish about them, the index that routers keep, and tiers outside the device."""
