"""`python -m dynamo.trtllm`."""

from dynamo.worker.main import main

if __name__ == "__main__":
    main("trtllm")
