"""`python -m dynamo.sglang.worker`, as it was once called."""

from dynamo.worker.main import main

if __name__ == "__main__":
    main("sglang", command="python -m dynamo.sglang.worker")
