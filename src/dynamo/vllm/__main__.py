"""`python -m dynamo.vllm`."""

from dynamo.worker.missing import main

if __name__ == "__main__":
    main("vllm")
