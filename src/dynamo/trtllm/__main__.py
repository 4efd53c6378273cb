"""`python -m dynamo.trtllm`."""

from dynamo.worker.absent import main

if __name__ == "__main__":
    main("trtllm")
