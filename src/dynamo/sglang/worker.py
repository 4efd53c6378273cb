"""`python -m dynamo.sglang.worker`."""

from dynamo.worker.absent import main

if __name__ == "__main__":
    main("sglang")
