"""How soon a new frontend lists 1,000 instances (target 2 s), and drops a killed worker (target 10 s)."""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from pathlib import Path

from figures import short, table
from networks import Network, networks
from processes import Stack
from prompts import MODEL, make_model


def fresh_frontend(folder: Path, network: Network, model: Path, count: int) -> list[str]:
    """Seconds from the frontend's start as a process until it lists every instance."""
    with Stack(folder / f"many-{network.discovery}", environ=network.environ) as stack:
        began = time.monotonic()
        holder = stack.start(
            "holder", str(Path(__file__).with_name("many_instances.py")), str(model), f"--count={count}"
        )
        while "registered" not in holder.output():
            holder.check()
            time.sleep(0.01)
        registered = time.monotonic() - began
        began = time.monotonic()
        frontend = stack.frontend(discovery=network.discovery)
        while (listed := stack.get("/health").count(b'"instance_id"')) < count:
            if time.monotonic() - began > 60:
                raise SystemExit(f"after a minute the frontend lists {listed} of {count}:\n{frontend.output()}")
            time.sleep(0.005)
        seconds = time.monotonic() - began
        note = f"all registered in {registered:.2f} s; frontend {frontend.cpu():.2f} s CPU"
        return [network.discovery, f"{count} instances, fresh frontend", short(seconds), "2", note]


def killed_worker(folder: Path, network: Network, model: Path, repeats: int) -> list[str]:
    """Seconds from SIGKILL of the only worker until the model is no longer listed."""
    times = []
    with Stack(folder / f"killed-{network.discovery}", environ=network.environ) as stack:
        stack.frontend(discovery=network.discovery)
        for _ in range(repeats):
            worker = stack.mocker(model, MODEL, discovery=network.discovery)
            stack.until("/v1/models", f'"{MODEL}"'.encode())
            worker.process.send_signal(signal.SIGKILL)
            began = time.monotonic()
            worker.process.wait()
            del stack.children["mocker"]
            while f'"{MODEL}"'.encode() in stack.get("/v1/models"):
                if time.monotonic() - began > 60:
                    raise SystemExit("a killed worker is still listed after a minute")
                time.sleep(0.005)
            times.append(time.monotonic() - began)
    note = "each: " + ", ".join(short(one) for one in times)
    return [network.discovery, "SIGKILL of a worker, until out of /v1/models", short(max(times)), "10", note]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--networks", default="file+tcp,etcd+tcp")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        model = make_model(folder / "model")
        with networks(folder, *options.networks.split(",")) as started:
            for network in started:
                rows.append(fresh_frontend(folder, network, model, options.count))
                rows.append(killed_worker(folder, network, model, options.repeats))
    print(table(["discovery", "what", "seconds (max)", "target", "details"], rows))


if __name__ == "__main__":
    main()
