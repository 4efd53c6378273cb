"""`python -m dynamo.sglang`."""

from dynamo.worker.main import main

if __name__ == "__main__":
    main("sglang")
