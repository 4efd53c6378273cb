"""Processes of the package whose calls are traced, for `hops.py`."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import threading
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

ROOT = Path(os.environ.get("HOPS_SOURCE", Path(__file__).parents[1] / "src")).resolve()
SOURCE = f"{ROOT}/dynamo/"
LIMIT_SECONDS = 60.0
"""What has not happened by then is an error."""
_INSIDE = re.compile(r"(\.<locals>)?\.<(lambda|listcomp|setcomp|dictcomp|genexpr)>.*")
Hop = tuple[str, str]
Stack = tuple[str, ...]


@dataclass
class Trace:
    """What a process did; a function is called `folder/module:qualified.name`."""

    calls: dict[str, set[Hop]] = field(default_factory=lambda: defaultdict(set))
    """By caller, into other modules."""
    stacks: dict[str, dict[Stack, None]] = field(default_factory=lambda: defaultdict(dict))
    """By the pattern that the last function matches; the outermost function first."""
    lines: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.calls.values())) + sum(map(len, self.stacks.values()))

    def add(self, more: dict[str, Any]) -> None:
        for caller, hops in more["calls"]:
            self.calls[caller] |= set(map(tuple, hops))
        for end, stacks in more["stacks"]:
            self.stacks[end] |= dict.fromkeys(map(tuple, stacks))
        for function, line in more["lines"]:
            self.lines[function] = min(line, self.lines.get(function, line))

    def to_wire(self) -> dict[str, Any]:
        """`list` copies at once, while the traced threads go on."""
        return {
            "calls": [(caller, list(hops)) for caller, hops in list(self.calls.items())],
            "stacks": [(end, list(stacks)) for end, stacks in list(self.stacks.items())],
            "lines": list(self.lines.items()),
        }


def running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the loop has not begun, or has ended
        return None


def traced(control: str, ends: list[str], program: str, words: list[str]) -> None:
    """Run `program words`; answer each line on the socket `control` with what happened since the last."""
    trace = Trace()
    known: dict[CodeType, tuple[str, list[str]]] = {}

    def about(code: CodeType) -> tuple[str, list[str]]:
        """Its name, and the patterns that it matches."""
        if code not in known:
            qualified = _INSIDE.sub("", code.co_qualname)
            met = [end for end in ends if re.fullmatch(end, code.co_qualname)]
            known[code] = f"{code.co_filename[len(SOURCE) : -3]}:{qualified}", met
        return known[code]

    def stack(frame: FrameType | None) -> list[FrameType]:
        """The functions of ours, innermost first, up to the event loop; empty while modules are imported.

        The loop's main task goes on beyond it, to what started the loop.
        """
        found: list[FrameType] = []
        while frame:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return []
            in_loop = frame.f_code.co_filename.endswith("asyncio/runners.py") and frame.f_code.co_name == "run"
            if in_loop and frame.f_locals.get("task") not in (None, running_task()):
                return found
            if frame.f_code.co_filename.startswith(SOURCE):
                found.append(frame)
            frame = frame.f_back
        return found

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        now = trace
        called, met = about(frame.f_code)
        frames = stack(frame)
        names = [about(each.f_code)[0] for each in frames]
        if len(frames) > 1 and frames[1].f_code.co_filename != frame.f_code.co_filename:
            now.calls[names[1]].add((names[1], called))
        for end in met if frames else ():
            now.stacks[end][tuple(reversed(names))] = None
            for each, name in zip(frames, names, strict=True):
                now.lines[name] = min(each.f_code.co_firstlineno, now.lines.get(name, each.f_code.co_firstlineno))

    def answer() -> None:
        nonlocal trace
        for _ in peer:
            before, trace = trace, Trace()
            peer.write(json.dumps(before.to_wire()) + "\n")
            peer.flush()

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(control)
    peer = connection.makefile("rw")
    threading.Thread(target=answer, daemon=True).start()
    os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
    threading.setprofile(profile)
    sys.setprofile(profile)
    sys.argv = [program, *words]
    scripts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["scripts"]
    if program in scripts:
        name, _, function = scripts[program].partition(":")
        getattr(importlib.import_module(name), function)()
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


class Traced:
    """A process of `program`, a command of the package or a module to be run with `-m`.

    The stacks are those of calls to functions whose qualified names match one of the patterns `ends`.
    """

    def __init__(
        self, folder: Path, name: str, ends: list[str], program: str, *words: str, terminal: int | None = None
    ) -> None:
        self.name = name
        self.trace = Trace()
        self._log = folder / f"{name}.log"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path := f"{folder}/{name}")
        listener.listen()
        listener.settimeout(LIMIT_SECONDS)
        environ = {"PYTHONPATH": str(ROOT), "DYN_FILE_KV": f"{folder}/kv", "PROMPT_TOOLKIT_NO_CPR": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, path, json.dumps(ends), program, *words],
                env=os.environ | environ | {"HOME": str(folder)}, stdin=terminal,
                stdout=log if terminal is None else terminal, stderr=log if terminal is None else terminal,
            )  # fmt: skip
        self._peer = listener.accept()[0].makefile("rw")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def follow(self) -> bool:
        """Whether anything new happened since the last call."""
        self._peer.write("\n")
        self._peer.flush()
        before = len(self.trace)
        line = self._peer.readline()
        if not line:
            raise SystemExit(f"{self.log()}\n{self.name}: has ended")
        self.trace.add(json.loads(line))
        return len(self.trace) > before

    def begin(self, name: str = "") -> None:
        """Forget what happened until now; another part of its life begins if that has a name."""
        self.follow()
        self.trace = Trace()
        self.name = name or self.name

    def log(self) -> str:
        return self._log.read_text()


if __name__ == "__main__":
    traced(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4:])
