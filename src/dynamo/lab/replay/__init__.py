"""Traffic replayed on a simulated fleet, as `python -m dynamo.replay` is asked to."""
