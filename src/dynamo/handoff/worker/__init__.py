"""The workers' side of a hand-off: compute a prompt and offer it, or fetch one and continue from it."""
