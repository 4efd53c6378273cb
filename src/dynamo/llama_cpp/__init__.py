"""The engine llama_cpp as a worker of its own: `python -m dynamo.llama_cpp`."""
