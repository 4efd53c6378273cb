"""Chooses a worker by cost, and decides who waits."""
