"""`python -m dynamo.vllm`."""

from dynamo.worker.absent import main

if __name__ == "__main__":
    main("vllm")
