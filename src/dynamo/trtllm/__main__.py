"""`python -m dynamo.trtllm`."""

from dynamo.worker.missing import main

if __name__ == "__main__":
    main("trtllm")
