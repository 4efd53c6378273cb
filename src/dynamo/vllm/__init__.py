"""The engine vllm as a worker of its own: `python -m dynamo.vllm`."""
