"""in=stdin: one prompt from standard input; standard output gets its answer and nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

from dynamo.cli.run.answering import RunError, request_defaults, serve_models
from dynamo.cli.run.grammar import Command
from dynamo.process.threads import in_thread
from dynamo.protocols.chat import Message
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process import INTERRUPTED, unless_shut_down
from dynamo.serving.ask import ask


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    code = await unless_shut_down(runtime, _answer(runtime, command, environ))
    return INTERRUPTED if code is None else code


async def _answer(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    defaults = request_defaults(command)
    prompt = (await _read_all()).rstrip("\n")
    if not prompt.strip():
        raise RunError("there is no prompt on standard input")
    async with serve_models(runtime, command, environ) as (_, model):
        printer = _Printer()
        answer = asyncio.ensure_future(
            ask(model, defaults.chat(model.name, [Message(role="user", content=prompt)]), printer)
        )
        printer.when_closed = answer.cancel
        try:
            await answer
        except asyncio.CancelledError:
            if not printer.closed:
                raise
            return 1
        printer.end()
    return 0


class _Printer:
    """Writes text when it arrives; a closed pipe (`| head`) cancels the answer."""

    def __init__(self) -> None:
        self.closed = False
        self.when_closed: Callable[[], object] = lambda: None
        self._last = ""

    def text(self, text: str) -> None:
        if self.closed:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self.closed = True
            # The interpreter flushes stdout once more at exit, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.when_closed()
        self._last = text[-1:]

    def reasoning(self, text: str) -> None:
        """Reasoning is not part of the answer."""

    def end(self) -> None:
        if self._last != "\n":
            self.text("\n")


async def _read_all() -> str:
    try:
        return (await in_thread(lambda: sys.stdin.buffer.read() if sys.stdin else b"")).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"standard input is not UTF-8 text (byte {error.start})") from error
