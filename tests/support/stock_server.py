"""A stock OpenAI-compatible server, none of ours: llama.cpp's, with its own tokenizer and cache.

`python stock_server.py MODEL.gguf HOST PORT`
"""

from __future__ import annotations

import signal
import sys

from xllamacpp import CommonParams, Server


def main() -> None:
    params = CommonParams()
    params.model.path = sys.argv[1]
    params.hostnames, params.port = [sys.argv[2]], int(sys.argv[3])
    params.n_ctx, params.n_parallel = 4096, 8
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.verbosity = 0
    server = Server(params)
    print("serving", server.listening_address, file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
