"""KV blocks: hashes, messages, what workers publish, the index that routers keep, and tiers outside the device."""
