"""What routers and workers share about KV blocks: how they are hashed and on which subjects they are announced."""
