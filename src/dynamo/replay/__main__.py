"""`python -m dynamo.replay`."""

import gc

from dynamo.lab.replay.command import main
from dynamo.process.pipes import until_reader_leaves

if __name__ == "__main__":
    gc.freeze()
    # Simulations leave hardly any cycles behind, and have millions of objects to look through for them.
    gc.set_threshold(100_000, 50, 1000)
    with until_reader_leaves():
        main()
