"""Count hops on three walks: a chat over HTTP, a KV event to the decision it changes, `dynamo-run` to a chat.

A function is on a walk if it is on the call stack when a request, an answer or an event arrives at the end of a
stretch (`ENDS`). Three columns, in each of which a call counts once however often it happens:

- hops: calls by a function on the walk into another module;
- path: those of them that are on the call stack themselves, so without what is fetched on the way;
- returns: hops into a room (a top-level folder) that the stack has already left.

`--list` shows the hops, those of the path marked with `*` and returns with `<`; `HOPS_SOURCE=…/src` counts another
checkout.
"""

from __future__ import annotations

import json
import os
import pty
import re
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType

SOURCE = str(Path(os.environ.get("HOPS_SOURCE", Path(__file__).parents[1] / "src")).resolve()) + "/dynamo/"
ENDS = {
    "dynamo-run: start to prompt": r"EchoCore\.start|discovery/memory:\w+\.put$|TerminalChat\.run$",
    "dynamo-run: a typed line to its answer": r"MemoryChannel\.send$|EchoCore\.(submit|generate)$|Markdown\w+\.feed$",
    "chat over HTTP: request to engine": r"ClientLink\.request$|MockerEngine\.(submit|generate)$",
    "chat over HTTP: tokens to socket": r"server_link:\w+\.tokens$|EventStream\.write$",
    "KV event to decision": r"events/zmq:\w+\.publish$|kv/index.*:Index\.apply$|kv/.*:choose$",
}  # fmt: skip
Hop = tuple[str, str]


@dataclass
class Walk:
    hops: set[Hop] = field(default_factory=set)
    path: set[Hop] = field(default_factory=set)
    returns: set[Hop] = field(default_factory=set)

    def __or__(self, other: Walk) -> Walk:
        return Walk(self.hops | other.hops, self.path | other.path, self.returns | other.returns)

    def __sub__(self, other: Walk) -> Walk:
        return Walk(self.hops - other.hops, self.path - other.path, self.returns - other.returns)


Walks = dict[str, Walk]


def module(function: str) -> str:
    return function.partition(":")[0]


def room(function: str) -> str:
    return function.partition("/")[0]


def walk(stacks: set[tuple[str, ...]], calls: dict[str, set[Hop]]) -> Walk:
    """`stacks` are the functions on the stack at an end, the outermost first."""
    found = Walk()
    for stack in stacks:
        found.path |= {hop for hop in pairwise(stack) if module(hop[0]) != module(hop[1])}
        for depth, function in enumerate(stack):
            left = {room(each) for each in stack[:depth]} - {room(function)}
            found.hops |= calls[function]
            found.returns |= {hop for hop in calls[function] if room(hop[1]) in left}
    return found


def trace(control: str, module: str, words: list[str]) -> None:
    """Run `python -m module words`; answer each byte on the socket `control` with the hops since the last."""
    calls: dict[str, set[Hop]] = defaultdict(set)
    stacks: dict[str, set[tuple[str, ...]]] = defaultdict(set)

    def name(frame: FrameType) -> str:
        return f"{frame.f_code.co_filename[len(SOURCE) : -3]}:{frame.f_code.co_qualname}"

    def stack(frame: FrameType | None) -> list[FrameType]:
        """The functions of ours, innermost first, up to the event loop; empty while modules are imported."""
        found = []
        while frame and not frame.f_code.co_filename.endswith("asyncio/runners.py"):
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return []
            if frame.f_code.co_filename.startswith(SOURCE):
                found.append(frame)
            frame = frame.f_back
        return found

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        called = name(frame)
        frames = stack(frame)
        if len(frames) > 1 and frames[1].f_code.co_filename != frame.f_code.co_filename:
            calls[name(frames[1])].add((name(frames[1]), called))
        for each, end in ENDS.items():
            if re.search(end, called):
                stacks[each].add(tuple(name(frame) for frame in reversed(frames)))

    def answer() -> None:
        while peer.recv(1):
            walks = {
                each: {key: sorted(hops) for key, hops in vars(walk(stacks[each], calls)).items()} for each in ENDS
            }
            calls.clear()
            stacks.clear()
            peer.sendall(json.dumps(walks).encode() + b"\n")

    peer = socket.socket(socket.AF_UNIX)
    peer.connect(control)
    threading.Thread(target=answer, daemon=True).start()
    threading.setprofile(profile)
    sys.setprofile(profile)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Traced:
    def __init__(self, folder: str, module: str, *words: str, terminal: int | None = None) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path := f"{folder}/{module}")
        listener.listen()
        environ = {"PYTHONPATH": SOURCE[: -len("dynamo/")], "DYN_FILE_KV": f"{folder}/kv", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--trace", path, module, *words],
            env=os.environ | environ | {"HOME": folder}, stdin=terminal, stdout=terminal, stderr=terminal,
        )  # fmt: skip
        self._peer = listener.accept()[0].makefile("rw")

    def hops(self) -> Walks:
        """Since the last call."""
        self._peer.write("?")
        self._peer.flush()
        walks = json.loads(self._peer.readline())
        return {each: Walk(**{key: set(map(tuple, hops)) for key, hops in of.items()}) for each, of in walks.items()}


def read_until(terminal: int, *expected: bytes) -> None:
    seen = b""
    for words in expected:
        while words not in seen:
            seen += os.read(terminal, 65536)
        seen = seen.partition(words)[2]


def chat_on_terminal(folder: str) -> list[Walks]:
    ours, theirs = pty.openpty()
    run = Traced(folder, "dynamo.cli.main", "out=echo_core", "tiny", terminal=theirs)
    read_until(ours, b"1m>")
    to_prompt = run.hops()
    os.write(ours, b"forty-two\r")
    read_until(ours, b"assistant", b"1m>")
    time.sleep(1)
    walks = [to_prompt, run.hops()]
    run.process.kill()
    return walks


def chat_over_http(folder: str) -> list[Walks]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/"
    mocker = Traced(folder, "dynamo.mocker", "--model-path", "tiny", "--speedup-ratio", "1")
    frontend = Traced(folder, "dynamo.frontend", "--http-port", str(port), "--router-mode", "kv")

    def ask(question: str) -> None:
        body = {"model": "tiny", "stream": True, "max_tokens": 32, "messages": [{"role": "user", "content": question}]}
        request = urllib.request.Request(url + "chat/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).read()
        time.sleep(2)  # until its events have arrived

    for _ in range(300):
        try:
            ask("What do ships carry? " * 20)  # opens connections
            break
        except OSError:
            time.sleep(0.2)
    mocker.hops()
    frontend.hops()
    ask("How deep is the sea? " * 20)
    walks = [mocker.hops(), frontend.hops()]
    frontend.process.kill()
    mocker.process.kill()
    return walks


def main() -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        to_prompt, line, mocker, frontend = *chat_on_terminal(one), *chat_over_http(other)
    start, typed, request, tokens, events = ENDS
    counted = {start: to_prompt[start], typed: line[typed]}
    counted |= {walk: mocker[walk] | frontend[walk] for walk in (request, tokens, events)}
    counted[events] -= counted[request]
    print("hops  path  returns")
    for title, found in counted.items():
        print(f"{len(found.hops):4}  {len(found.path):4}  {len(found.returns):7}  {title}")
        if "--list" in sys.argv:
            for hop in sorted(found.hops):
                marks = ("*" if hop in found.path else " ") + ("<" if hop in found.returns else " ")
                print(f"        {marks} {hop[0]} -> {hop[1]}")


if __name__ == "__main__":
    if "--trace" in sys.argv[:2]:
        trace(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
