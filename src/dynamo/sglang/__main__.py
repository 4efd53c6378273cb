"""`python -m dynamo.sglang`."""

from dynamo.worker.missing import main

if __name__ == "__main__":
    main("sglang")
