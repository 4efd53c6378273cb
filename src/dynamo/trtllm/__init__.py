"""The engine trtllm as a worker of its own: `python -m dynamo.trtllm`."""
