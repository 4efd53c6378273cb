"""Batches of requests: their input file, its lines, the journal, and the answers."""
