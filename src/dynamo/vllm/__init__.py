"""The engine vllm as a worker of its own: not in this build yet."""
