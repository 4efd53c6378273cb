"""The engine sglang as a worker of its own: `python -m dynamo.sglang`."""
