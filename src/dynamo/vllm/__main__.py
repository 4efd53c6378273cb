"""`python -m dynamo.vllm`."""

from dynamo.worker.main import main

if __name__ == "__main__":
    main("vllm")
