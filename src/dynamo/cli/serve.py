"""`dynamo serve FILE.yaml`: the components of a file on this machine, until a signal comes or one cannot run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamo.cli.cluster.local import holds_graph, read_local_graph
from dynamo.process.supervisor import Deployment, Supervisor, read_deployment
from dynamo.process.supervisor.home import home_of
from dynamo.process.supervisor.output import PrefixedOutput
from dynamo.process.supervisor.supervisor import on_signals, unless_signalled
from dynamo.protocols.errors import StartError
from dynamo.runtime.process import fail
from dynamo.settings.arguments import CommandParser

ABOUT = """\
Start the components that the file lists on this machine, restart those that die, and drain them at Ctrl-C or SIGTERM
(a second one ends them at once).

The components go on when this process is killed. Serving the same file again adopts them; --stop drains them, whether
or not a process serves the file."""
EXAMPLE = """\
  components:
    worker:                      # any name; kind is the name unless it is given
      kind: llamacpp             # frontend, router, mocker, llamacpp, vllm, sglang, trtllm, mistralrs, …
      replicas: 2
      flags: {model: tiny}       # --model tiny
      env: {DYN_LOG: debug}      # {index} in a flag or variable is the number of the replica, from 0
    frontend:
      flags: {http-port: 8080, router-mode: kv}

FILE.yaml may also be a DynamoGraphDeployment of Kubernetes: its containers run here as processes, without images.
"""


def parser() -> CommandParser:
    flags = CommandParser("dynamo serve", ABOUT, EXAMPLE)
    flags.add_argument("file", metavar="FILE.yaml", help="the components, as below")
    one = flags.add_mutually_exclusive_group()
    one.add_argument("--check", action="store_true", help="only read the file and print the commands")
    one.add_argument("--stop", action="store_true", help="drain the components of the file")
    return flags


def main(words: Sequence[str], environ: Mapping[str, str]) -> None:
    if not words:
        parser().print_help()
        return
    asked = parser().parse_args(words)
    if asked.check:
        _print_commands(_read(asked.file, environ))
    elif asked.stop:
        _run(_stop(_read(asked.file, environ), Path(asked.file), environ))
    else:
        _run(_serve(_read(asked.file, environ), Path(asked.file), environ))


def _run(work: Coroutine[Any, Any, int]) -> None:
    try:
        code = asyncio.run(work)
    except StartError as error:
        raise fail(str(error), error=error) from None
    if code:
        raise SystemExit(code)


def _read(file: str, environ: Mapping[str, str]) -> Deployment:
    try:
        if holds_graph(Path(file)):
            deployment, notes = read_local_graph(Path(file), environ)
            for note in notes:
                print(f"note: {note}", file=sys.stderr)
            return deployment
        return read_deployment(Path(file))
    except StartError as error:
        raise fail(str(error), code=2, error=error) from None


def _print_commands(deployment: Deployment) -> None:
    for spec in deployment.components:
        print(f"{spec.name} × {spec.replicas}: {' '.join(spec.command(0))}")


async def _serve(deployment: Deployment, file: Path, environ: Mapping[str, str]) -> int:
    output = PrefixedOutput(sys.stdout, colour=sys.stdout.isatty() and not environ.get("NO_COLOR"))
    begun = time.monotonic()
    async with Supervisor(deployment, environ, output, home=home_of(file, environ)) as supervisor:
        signalled = on_signals(supervisor)
        try:
            await supervisor.adopt()
            await supervisor.start_all()
            if await unless_signalled(signalled, supervisor.until_ready()):
                supervisor.say(f"all components are ready after {time.monotonic() - begun:.1f} s")
                await unless_signalled(signalled, supervisor.until_failed())
        except StartError as error:
            supervisor.say("draining all components")
            await supervisor.drain()
            print(f"error: {error}", file=sys.stderr, flush=True)
            return 1
        supervisor.say("draining all components; a second signal ends them at once")
    return 0


async def _stop(deployment: Deployment, file: Path, environ: Mapping[str, str]) -> int:
    """Drain what the file's supervisor runs, or what one that is gone has left."""
    home = home_of(file, environ)
    if home is None:
        raise StartError("dynamo serve --stop works on Linux only")
    if await home.stop_holder():
        return 0
    output = PrefixedOutput(sys.stdout, colour=False)
    async with Supervisor(deployment, environ, output, home=home) as supervisor:
        on_signals(supervisor)
        if not await supervisor.adopt(all_of=True):
            supervisor.say(f"nothing of {file} runs")
    return 0
