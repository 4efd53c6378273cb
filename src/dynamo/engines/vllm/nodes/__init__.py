"""An engine over several nodes: its leader, its followers and the processes of its ranks."""
