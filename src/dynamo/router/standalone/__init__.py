"""A router for programs and as a process of its own, without a frontend."""
