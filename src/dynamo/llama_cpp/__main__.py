"""`python -m dynamo.llama_cpp`."""

from dynamo.worker.main import main

if __name__ == "__main__":
    main("llama_cpp")
