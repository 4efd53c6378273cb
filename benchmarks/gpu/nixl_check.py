"""Whether two processes of this machine can move memory with NIXL, and how fast: to be run before engines that need it.

    PYTHONPATH=SITE python benchmarks/gpu/nixl_check.py          # 10 to 20 s
    PYTHON benchmarks/gpu/nixl_check.py --megabytes 16           # on a CPU

Each way is tried in processes of its own, until one works: memory of the GPU as UCX likes it (`cuda_ipc`), memory of
the GPU without sharing it between processes, memory of the host. One line of JSON for each; what UCX said of a way
that failed is on standard error. A way works if what arrived is what was sent. `gb_per_s` is measured with pieces of
32 KiB, as vLLM moves one layer of a block of an 8B model, and of 2 MiB, all layers of that block.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

WAYS: tuple[tuple[str, dict[str, str]], ...] = (
    ("cuda", {}),
    ("cuda", {"UCX_TLS": "tcp,self,cuda_copy"}),
    ("cpu", {}),
)
PIECES = (32 << 10, 2 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=45, help="for each way; ends one that hangs (%(default)s)")
    parser.add_argument("--all", action="store_true", help="try the other ways too after one that works")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(moved(options.inside, options.megabytes << 20)), flush=True)
        return
    raise SystemExit(0 if usable(options.megabytes, options.seconds, every=options.all) else "no way works")


def usable(megabytes: int = 1024, seconds: float = 45, *, every: bool = False) -> tuple[str, dict[str, str]] | None:
    """The first way that works: the device of its memory, and the environment that UCX needs."""
    found = None
    for device, environ in WAYS:
        result = attempt(device, environ, megabytes, seconds)
        print(json.dumps({"what": "nixl", "device": device, **environ, **result}), flush=True)
        if result["works"] and found is None:
            found = device, environ
        if found and not every:
            break
    return found


def attempt(device: str, environ: dict[str, str], megabytes: int, seconds: float) -> dict[str, Any]:
    begun = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, __file__, "--inside", device, "--megabytes", str(megabytes)],
        env={**os.environ, "UCX_LOG_LEVEL": "warn", **environ},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        err += f"\nnothing arrived within {seconds:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    took = {"seconds": round(time.monotonic() - begun, 1)}
    if child.returncode == 0 and lines:
        return {**json.loads(lines[-1]), **took}
    print(f"--- {device} {environ}\n{out[-2000:]}\n{err[-4000:]}", file=sys.stderr, flush=True)
    return {"works": False, "error": (err.strip() or "no output").splitlines()[-1][:300], **took}


def moved(device: str, size: int) -> dict[str, Any]:
    """Read `size` bytes of another process."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU")
    context = get_context("spawn")
    here, there = context.Pipe()
    holder = context.Process(target=hold, args=(there, device, size), daemon=True)
    holder.start()
    there.close()
    agent, memory = registered("reader", torch.zeros(size, dtype=torch.uint8, device=device))
    name = agent.add_remote_agent(here.recv())
    address, expected = here.recv()
    rates = {f"{piece >> 10}k": read(agent, name, memory, address, piece) for piece in PIECES}
    here.send("done")
    holder.join(10)
    return {"works": checksum(memory) == expected, "gb_per_s": rates}


def hold(pipe: Connection, device: str, size: int) -> None:
    import torch

    torch.manual_seed(1)
    memory = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    expected = checksum(memory)
    agent, memory = registered("holder", memory)
    pipe.send(agent.get_agent_metadata())
    pipe.send((memory.data_ptr(), expected))
    pipe.recv()


def registered(name: str, memory: Any) -> tuple[Any, Any]:
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(num_threads=4))
    agent.register_memory(memory)
    return agent, memory


def checksum(memory: Any) -> int:
    """Also of the order: equal sums of another order would pass."""
    import torch

    weights = torch.arange(1, 1 + (1 << 20), device=memory.device)
    return sum(int((part * weights[: len(part)]).sum()) * (1 + at) for at, part in enumerate(memory.split(1 << 20)))


def read(agent: Any, name: str, memory: Any, address: int, piece: int) -> float:
    """Gigabytes per second, the second time: the first one opens the connection."""
    kind, device = ("VRAM", memory.get_device()) if memory.is_cuda else ("DRAM", 0)
    offsets = range(0, len(memory), piece)
    ours, theirs = (
        agent.prep_xfer_dlist(side, [(start + offset, piece, device) for offset in offsets], kind)
        for side, start in (("NIXL_INIT_AGENT", memory.data_ptr()), (name, address))
    )
    # Every second piece first: NIXL would move neighbours as one.
    order = [*range(0, len(offsets), 2), *range(1, len(offsets), 2)]
    rate = 0.0
    for _ in range(2):
        memory.zero_()
        if memory.is_cuda:
            import torch

            torch.cuda.synchronize()
        begun = time.perf_counter()
        handle = agent.make_prepped_xfer("READ", ours, order, theirs, order, b"read")
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise SystemExit(f"the transfer ended as {state}")
        rate = len(memory) / (time.perf_counter() - begun) / 1e9
        agent.release_xfer_handle(handle)
    return round(rate, 2)


if __name__ == "__main__":
    main()
