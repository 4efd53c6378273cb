"""Sessions: the conversations of agents, and the worker that each of them keeps to."""
