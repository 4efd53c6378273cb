"""All processes of a deployment: `start`, `scale`, `stop`, and what became of them; signals drain or kill them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dynamo.process.supervisor.deployment import ComponentSpec, Deployment
from dynamo.process.supervisor.home import Adopted, Home, ProcessRecord
from dynamo.process.supervisor.output import PrefixedOutput
from dynamo.process.supervisor.process import FIRST_PAUSE, ProcessState, SupervisedProcess
from dynamo.protocols.errors import StartError

NAME = "serve"
_REQUESTS = "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"
_FOR_REQUESTS = 5 / 6
"""The share of the time to drain in which a worker's requests may end; the rest is for its own end."""
_DISCOVERY = ("DYN_DISCOVERY_BACKEND", "DYN_FILE_KV", "ETCD_ENDPOINTS")


class Supervisor:
    """`async with Supervisor(…) as supervisor`: leaving drains everything.

    With a `home`, processes go on when this one is killed, and the next supervisor with this home adopts them: entering
    takes the home, and raises StartError while another one holds it.

    Without another choice in `environ`, the processes find each other in a folder of their own, and the requests of a
    worker may end within the time it has to drain.
    """

    def __init__(
        self,
        deployment: Deployment,
        environ: Mapping[str, str],
        output: PrefixedOutput,
        *,
        first_pause: float = FIRST_PAUSE,
        home: Home | None = None,
    ) -> None:
        """`first_pause`: seconds before the first restart of a process; each further one doubles it."""
        self._deployment = deployment
        self._specs = {spec.name: spec for spec in deployment.components}
        self._environ = {_REQUESTS: f"{_FOR_REQUESTS * deployment.drain_seconds:g}", **environ, **deployment.env}
        self._output = output
        self._first_pause = first_pause
        self._home = home
        self._running: dict[str, dict[int, SupervisedProcess]] = {name: {} for name in self._specs}
        self._tasks: dict[SupervisedProcess, asyncio.Task[None]] = {}
        self._change = asyncio.Event()
        """Set, and replaced, at each change of a process."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        if self._home:
            self._home.take()
        self._folder = tempfile.TemporaryDirectory(prefix="dynamo-serve-")
        if not any(self._environ.get(name) for name in _DISCOVERY):
            place = self._home.discovery if self._home else Path(self._folder.name) / "discovery"
            self._environ["DYN_FILE_KV"] = str(place)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()
        assert self._folder
        self._folder.cleanup()
        if self._home:
            self._home.release()

    def say(self, line: str) -> None:
        """Write a line of the supervisor itself."""
        self._output.write(NAME, NAME, line)

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components, in the order in which they start."""
        return tuple(self._specs)

    def processes(self, component: str) -> list[SupervisedProcess]:
        """The processes of a component that are not stopping, by their index."""
        return [process for _, process in sorted(self._running[component].items())]

    async def adopt(self, *, all_of: bool = False) -> int:
        """Take over what an earlier supervisor left, and drain of it what the deployment no longer has.

        With `all_of` a component keeps all its processes, also those whose command has changed. Returns how many
        there were.
        """
        leaving: list[SupervisedProcess] = []
        kept = 0
        for record, process in self._home.left() if self._home else ():
            spec = self._specs.get(record.component)
            wanted = spec is not None and (
                all_of or (record.index < spec.replicas and list(record.command) == spec.command(record.index))
            )
            supervised = self._supervise(spec or _unlisted(record), record.index, record.name, process)
            if wanted:
                self._running[record.component][record.index] = supervised
                kept += 1
            else:
                leaving.append(supervised)
        if kept:
            self.say(f"adopted {kept} processes that were running")
        await self._stop(leaving)
        return kept + len(leaving)

    async def start_all(self) -> None:
        """Those that were adopted count, even if a component has more than its replicas."""
        for spec in self._specs.values():
            self._output.expect(_process_name(spec, max(spec.replicas - 1, 0)))
        for name, spec in self._specs.items():
            await self.scale(name, max(spec.replicas, len(self._running[name])))

    async def scale(self, component: str, replicas: int) -> None:
        """Start what is missing, without waiting until it is ready; drain what is too much, the newest first."""
        spec, running = self._specs[component], self._running[component]
        if replicas < 0:
            raise ValueError(f"{component} cannot have {replicas} replicas")
        for index in itertools.count():
            if len(running) >= replicas:
                break
            if index not in running:
                running[index] = self._start(spec, index)
        leaving = [running.pop(index) for index in sorted(running)[replicas:]]
        await self._stop(leaving)

    async def stop(self, component: str) -> None:
        await self.scale(component, 0)

    async def drain(self) -> None:
        """Drain component by component, in the reverse order of their start; a replica has `drain_seconds`."""
        for name in reversed(self._specs):
            await self._stop([self._running[name].pop(index) for index in sorted(self._running[name])])

    def kill(self) -> None:
        """Kill all processes at once, draining or not."""
        for process in self._tasks:
            process.kill()

    async def until_ready(self) -> None:
        """Wait until every process is ready; raises StartError as soon as one is given up."""
        await self._until(lambda: all(process.state is ProcessState.Ready for process in self._tasks))

    async def until_failed(self) -> None:
        """Wait for a failure: raises StartError as soon as a process is given up."""
        await self._until(lambda: False)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while True:
            if failed := self._failed():
                raise StartError(failed.reason)
            if reached():
                return
            await self._change.wait()

    def _failed(self) -> SupervisedProcess | None:
        return next((process for process in self._tasks if process.state is ProcessState.Failed), None)

    def _start(self, spec: ComponentSpec, index: int) -> SupervisedProcess:
        return self._supervise(spec, index, _process_name(spec, index))

    def _supervise(
        self, spec: ComponentSpec, index: int, name: str, adopted: Adopted | None = None
    ) -> SupervisedProcess:
        assert self._folder
        self._output.expect(name)
        command = spec.command(index)
        process = SupervisedProcess(
            name,
            command,
            self._environ | spec.environment(index),
            Path(self._folder.name),
            lambda name, line: self._output.write(spec.name, name, line),
            reports_ready=spec.reports_ready,
            first_pause=self._first_pause,
            home=self._home,
            record=self._home.recording(name, spec.name, index, command) if self._home else None,
            adopted=adopted,
        )
        process.changed = lambda: self._on_change(process)
        self._tasks[process] = asyncio.create_task(process.run(), name=f"supervise-{name}")
        return process

    def _on_change(self, process: SupervisedProcess) -> None:
        if process.state is ProcessState.Ready:
            ready = sum(each.state is ProcessState.Ready for each in self._tasks)
            self.say(f"{process.name} is ready ({ready} of {len(self._tasks)})")
        self._change.set()
        self._change = asyncio.Event()

    async def _stop(self, processes: Sequence[SupervisedProcess]) -> None:
        if not processes:
            return
        tasks = [self._tasks[process] for process in processes]
        for process in processes:
            process.stop()
        await asyncio.wait(tasks, timeout=self._deployment.drain_seconds)
        for process, task in zip(processes, tasks, strict=True):
            if not task.done():
                self.say(f"{process.name} did not end within {self._deployment.drain_seconds:g} s and is killed")
                process.kill()
        await asyncio.gather(*tasks)
        for process in processes:
            del self._tasks[process]


def _unlisted(record: ProcessRecord) -> ComponentSpec:
    """For a process of a component that the file no longer has."""
    return ComponentSpec(name=record.component, kind="command", words=tuple(record.command))


def _process_name(spec: ComponentSpec, index: int) -> str:
    return spec.name if spec.replicas == 1 and index == 0 else f"{spec.name}-{index}"


def on_signals(supervisor: Supervisor | None) -> asyncio.Event:
    """An event that is set at the first SIGTERM or SIGINT; a second one kills the processes."""
    signalled = asyncio.Event()

    def on_signal() -> None:
        if signalled.is_set() and supervisor:
            supervisor.kill()
        signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return signalled


async def unless_signalled(signalled: asyncio.Event, work: Awaitable[Any]) -> bool:
    """Run `work` until a signal comes; returns whether it ended before, and raises what it raised."""
    task, waiter = asyncio.ensure_future(work), asyncio.create_task(signalled.wait())
    try:
        await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        task.cancel()
        waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError, StartError):
            await task
