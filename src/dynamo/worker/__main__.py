"""`python -m dynamo.worker ENGINE …`: a worker for any engine, also one of another distribution."""

import sys

from dynamo.runtime.process import fail
from dynamo.worker.main import main

if __name__ == "__main__":
    words = sys.argv[1:]
    if not words or words[0].startswith("-"):
        raise fail("the first word is the engine: python -m dynamo.worker ENGINE [flags]", code=2)
    main(words[0], words[1:], f"python -m dynamo.worker {words[0]}")
