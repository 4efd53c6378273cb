"""`python -m dynamo.llama_cpp`."""

from dynamo.worker.missing import main

if __name__ == "__main__":
    main("llamacpp")
