"""`python -m dynamo.llama_cpp`."""

from dynamo.worker.absent import main

if __name__ == "__main__":
    main("llamacpp")
