"""Counts what a reader passes on five walks through the code, traced from real processes.

The walks: a chat in and out, a KV event to a decision, `dynamo-run` to a chat, a prompt from prefill to decode, a tick
of the planner. `WALKS` cuts each into stretches. A stretch is what is on the call stack when its last function is
called, awaiting coroutines included: from its first function if one is named, or else from the event loop, and in the
loop's main task from what started the loop. Only functions of the package count; a lambda or comprehension belongs to
the function in which it is written.

- functions: those on a stretch of the walk;
- files: the modules that hold them;
- rooms: the folders directly in the package that hold those modules, or the module itself where it is in no folder;
- hops: calls by a function on the walk into another module, so what is passed on and what is fetched on the way;
- path: the hops along the stack, so without what is fetched;
- returns: hops into a room that the stack has already left.

Each counts once per walk, however often it happens. `WALKS` knows functions by their qualified names alone, so moving a
module changes counts, but not what is counted. A stretch that is never seen is an error.

`--list` shows the functions with file and line, in the order in which they are passed, and the hops, those of the path
marked `*` and the returns `<`; `--json` prints all of it as JSON. `HOPS_SOURCE=…/src` counts another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from traced import LIMIT_SECONDS, Hop, Stack, Trace, Traced


class Stretch(NamedTuple):
    """Patterns of qualified names; stacks without `first` do not count."""

    process: str
    """Or a part of its life."""
    last: str
    first: str = ""

    def stacks(self, trace: Trace) -> Iterator[Stack]:
        for stack in trace.stacks[self.last]:
            names = (function.partition(":")[2] for function in stack)
            start = next((at for at, name in enumerate(names) if re.fullmatch(self.first or ".*", name)), None)
            if start is not None:
                yield stack[start:]


WALKS = {
    "chat in and out": (
        Stretch("frontend", r"\w*Link\.request"),
        Stretch("worker", r"\w*Engine\.generate"),
        Stretch("worker", r"\w*Outlet\.tokens"),
        Stretch("frontend", r"EventStream\.write"),
    ),
    "KV event to decision": (
        Stretch("worker", r"RankFeed\.publish"),
        Stretch("worker", r"\w*EventPlane\.publish", first=r"KvFeed\.flush"),
        Stretch("frontend", r"Index\.apply"),
        Stretch("frontend", r"choose", first=r"\w*Router\.place"),
    ),
    "dynamo-run to a chat": (
        Stretch("start", r"run_until_signalled", first=r"main"),
        Stretch("start", r"unless_shut_down", first=r"run"),
        Stretch("start", r"Echo\w*\.start"),
        Stretch("start", r"\w*Discovery\.put"),
        Stretch("start", r"TerminalChat\.run"),
        Stretch("line", r"\w*Channel\.send"),
        Stretch("line", r"Echo\w*\.generate"),
        Stretch("line", r"Markdown\w*\.feed"),
    ),
    "prefill to decode": (
        Stretch("frontend", r"\w*Link\.request", first=r"Delivery\.start"),
        Stretch("prefill", r"\w*Engine\.generate"),
        Stretch("prefill", r"PrefillWorker\.computed|PrefillSink\.item"),
        Stretch("prefill", r"\w+\.hold_prefix"),
        Stretch("prefill", r"\w*Outlet\.item"),
        Stretch("frontend", r"Prefill\.item"),
        Stretch("decode", r"DecodeWorker\.__call__"),
        Stretch("decode", r"\w*Link\.request"),
        Stretch("prefill", r"\w+\.held_state"),
        Stretch("decode", r"StateSink\.item"),
        Stretch("decode", r"\w+\.import_prefix"),
        Stretch("decode", r"\w*Engine\.generate"),
        Stretch("decode", r"\w*Outlet\.tokens"),
        Stretch("frontend", r"(Split|Handoff)\.computed"),
        Stretch("prefill", r"\w+\.release_prefix"),
    ),
    "planner tick": (
        Stretch("planner", r"measurement", first=r"Planner\.tick"),
        Stretch("planner", r"\w*Actor\.read", first=r"Planner\.tick"),
        Stretch("planner", r"forecast_of", first=r"Planner\.tick"),
        Stretch("planner", r"\w+\.sustainable_rate", first=r"decide"),
        Stretch("planner", r"\w*Actor\.scale", first=r"Planner\.tick"),
        Stretch("planner", r"SupervisedProcess\.__init__"),
        Stretch("planner", r"SupervisedProcess\.run"),
    ),
}  # fmt: skip
ENDS = sorted({stretch.last for stretches in WALKS.values() for stretch in stretches})


def module(function: str) -> str:
    return function.partition(":")[0]


def room(function: str) -> str:
    return module(function).partition("/")[0]


@dataclass
class Walk:
    functions: dict[str, int] = field(default_factory=dict)
    """With their lines, in the order in which they are passed."""
    hops: set[Hop] = field(default_factory=set)
    path: set[Hop] = field(default_factory=set)
    returns: set[Hop] = field(default_factory=set)

    def __or__(self, other: Walk) -> Walk:
        functions = self.functions | other.functions
        return Walk(functions, self.hops | other.hops, self.path | other.path, self.returns | other.returns)

    def add(self, trace: Trace, stack: Stack) -> None:
        path = {hop for hop in pairwise(stack) if module(hop[0]) != module(hop[1])}
        self.path |= path
        for depth, function in enumerate(stack):
            left = {room(each) for each in stack[:depth]} - {room(function)}
            # What is awaited now may have been called before the tracing began.
            hops = trace.calls[function] | {hop for hop in path if hop[0] == function}
            self.functions.setdefault(function, trace.lines[function])
            self.hops |= hops
            self.returns |= {hop for hop in hops if room(hop[1]) in left}

    def counts(self) -> dict[str, int]:
        return {
            "functions": len(self.functions), "files": len(set(map(module, self.functions))),
            "rooms": len(set(map(room, self.functions))), "hops": len(self.hops), "path": len(self.path),
            "returns": len(self.returns),
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": self.counts(),
            "functions": [
                {"function": each.partition(":")[2], "file": f"src/dynamo/{module(each)}.py", "line": line,
                 "room": room(each)}
                for each, line in self.functions.items()
            ],
            "hops": [
                {"caller": hop[0], "called": hop[1], "path": hop in self.path, "returns": hop in self.returns}
                for hop in sorted(self.hops)
            ],
        }  # fmt: skip


def until_walked(title: str, *processes: Traced) -> Walk:
    """Follow the processes until each of their stretches was seen, and nothing new came in half a second."""
    began = time.monotonic()
    of = {process.name: process for process in processes}
    stretches = [stretch for stretch in WALKS[title] if stretch.process in of]
    while True:
        new = [process.follow() for process in processes]
        missing = [stretch for stretch in stretches if not any(stretch.stacks(of[stretch.process].trace))]
        if not missing and not any(new):
            break
        if missing and time.monotonic() - began > LIMIT_SECONDS:
            logs = "\n".join(process.log()[-2000:] for process in processes)
            raise SystemExit(f"{logs}\n{title}: never called: {', '.join(map(str, missing))}")
        time.sleep(0.5)
    walk = Walk()
    for stretch in stretches:
        trace = of[stretch.process].trace
        for stack in stretch.stacks(trace):
            walk.add(trace, stack)
    return walk


def read_until(terminal: int, *expected: bytes) -> None:
    seen = b""
    for words in expected:
        while words not in seen:
            seen += os.read(terminal, 65536)
        seen = seen.partition(words)[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def chat(port: int, question: str) -> None:
    body = {"model": "tiny", "stream": True, "max_tokens": 32, "messages": [{"role": "user", "content": question * 20}]}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request).read()


def until_answered(port: int) -> None:
    """Opens connections too, so that they are no part of a walk."""
    began = time.monotonic()
    while True:
        try:
            return chat(port, "What do ships carry? ")
        except OSError:
            if time.monotonic() - began > LIMIT_SECONDS:
                raise
        time.sleep(0.2)


def walk_terminal(folder: Path) -> Iterator[tuple[str, Walk]]:
    ours, theirs = pty.openpty()
    with Traced(folder, "start", ENDS, "dynamo-run", "out=echo_core", "tiny", terminal=theirs) as run:
        read_until(ours, b"1m>")
        to_prompt = until_walked("dynamo-run to a chat", run)
        run.begin("line")
        os.write(ours, b"forty-two\r")
        read_until(ours, b"assistant", b"1m>")
        yield "dynamo-run to a chat", to_prompt | until_walked("dynamo-run to a chat", run)


def frontend(folder: Path, port: int, *flags: str) -> Traced:
    return Traced(folder, "frontend", ENDS, "dynamo.frontend", "--http-port", str(port), "--router-mode", "kv", *flags)


def mocker(folder: Path, name: str, *flags: str) -> Traced:
    return Traced(folder, name, ENDS, "dynamo.mocker", "--model-path", "tiny", "--speedup-ratio", "1", *flags)


def walk_chat(folder: Path) -> Iterator[tuple[str, Walk]]:
    with mocker(folder, "worker") as worker, frontend(folder, port := free_port()) as front:
        until_answered(port)
        until_walked("KV event to decision", worker, front)
        worker.begin()
        front.begin()
        chat(port, "How deep is the sea? ")
        for title in ("chat in and out", "KV event to decision"):
            yield title, until_walked(title, worker, front)


def walk_handoff(folder: Path) -> Iterator[tuple[str, Walk]]:
    always = ("--router-conditional-disagg-config", '{"policy": "always"}')
    with ExitStack() as stack:
        processes = [
            stack.enter_context(mocker(folder, mode, "--disaggregation-mode", mode)) for mode in ("prefill", "decode")
        ]
        processes.append(stack.enter_context(frontend(folder, port := free_port(), *always)))
        until_answered(port)
        chat(port, "What do ships carry? ")
        until_walked("prefill to decode", *processes)
        for process in processes:
            process.begin()
        chat(port, "How deep is the sea? ")
        yield "prefill to decode", until_walked("prefill to decode", *processes)


@contextmanager
def asking(port: int) -> Iterator[None]:
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            chat(port, "How high are clouds? ")

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield
    finally:
        done.set()
        asker.join()


def walk_planner(folder: Path) -> Iterator[tuple[str, Walk]]:
    """Its targets are so low that it starts a second worker as soon as it knows what one sustains."""
    port = free_port()
    (folder / "serve.yaml").write_text(
        "components:\n  worker: {kind: mocker, flags: {model-path: tiny, speedup-ratio: 1}}\n"
        f"  frontend: {{flags: {{http-port: {port}}}}}\n"
    )
    config = {
        "deployment": str(folder / "serve.yaml"), "frontend_url": f"http://127.0.0.1:{port}", "max_gpu_budget": 2,
        "optimization_target": "sla", "ttft_ms": 1, "itl_ms": 1, "load_adjustment_interval_seconds": 0.5,
        "startup_seconds": 10,
    }  # fmt: skip
    with Traced(folder, "planner", ENDS, "dynamo.planner", "--config", json.dumps(config)) as planner:
        until_answered(port)
        planner.begin()
        with asking(port):
            yield "planner tick", until_walked("planner tick", planner)


WALKING: tuple[Callable[[Path], Iterator[tuple[str, Walk]]], ...] = (
    walk_terminal, walk_chat, walk_handoff, walk_planner,
)  # fmt: skip


def show(walks: dict[str, Walk], *, listed: bool) -> None:
    print(*Walk().counts(), "walk", sep="  ")
    for title, walk in walks.items():
        print("  ".join(f"{count:{len(name)}}" for name, count in walk.counts().items()), "", title)
        if not listed:
            continue
        for function, line in walk.functions.items():
            print(f"    {module(function)}.py:{line}  {function.partition(':')[2]}")
        for hop in sorted(walk.hops):
            marks = ("*" if hop in walk.path else " ") + ("<" if hop in walk.returns else " ")
            print(f"      {marks} {hop[0]} -> {hop[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, Walk] = {}
    for walking in WALKING:
        with tempfile.TemporaryDirectory() as folder:
            found |= walking(Path(folder))
    walks = {title: found[title] for title in WALKS}
    if asked.json:
        print(json.dumps({title: walk.to_json() for title, walk in walks.items()}, indent=1))
    else:
        show(walks, listed=asked.list)


if __name__ == "__main__":
    main()
