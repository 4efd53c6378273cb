"""The pure core of KV-aware routing: hashes, the index of who holds what, the load book and the cost of a choice."""
