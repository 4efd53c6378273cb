"""Frontends and workers as processes, and the faults done to them."""

from __future__ import annotations

import asyncio
import signal
import struct
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from chaos.faults import Fault, FaultKind
from chaos.forks import Forks
from chaos.proxy import FaultProxy
from support.hosts import Host, partition
from support.limits import full_disk, no_more_files
from support.services import Etcd, Nats, Service, free_port
from support.stack import SOURCE, Frontend, Process, Stack
from support.waiting import until

PROXIED_MOCKER = str(Path(__file__).with_name("proxied_mocker.py"))
CLOCK = Path(__file__).with_name("clock")
SERVING = ".generate as instance"
HELD = tuple(f"dynamo_component_handoff_{what}{{" for what in ("open_records", "held_blocks", "leaked_blocks"))
MIGRATIONS = "dynamo_frontend_model_migration_total{"


class FleetWorker:
    """A worker's place in the fleet, which processes take one after another."""

    def __init__(
        self,
        stack: Stack,
        command: Sequence[str],
        environ: dict[str, str],
        proxy: FaultProxy | None = None,
        forks: Forks | None = None,
    ) -> None:
        self._stack = stack
        self._forks = forks
        self._command = command
        self._environ = environ
        self.proxy = proxy
        self.status_port = environ.get("DYN_SYSTEM_PORT")
        self.spare = "prefill" in command
        """Requests are answered without it."""
        self.process: Process
        self.whole = True
        """No fault is being done to it."""

    async def start(self) -> None:
        if self._forks:
            self.process = await self._forks.fork(self._command, self._environ)
        else:
            self.process = await self._stack.python(*self._command, **self._environ)
        await self.process.line(SERVING)

    async def suffer(self, fault: Fault) -> None:
        """Do the fault and undo it."""
        match fault.kind:
            case FaultKind.KILL | FaultKind.DRAIN:
                self.process.signal(signal.SIGKILL if fault.kind is FaultKind.KILL else signal.SIGTERM)
                await self.process.ended()
                self._stack.processes.remove(self.process)
                await self.start()
            case FaultKind.STOP:
                self.process.signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self.process.signal(signal.SIGCONT)
            case FaultKind.FULL_DISK | FaultKind.NO_FILES:
                limit = full_disk if fault.kind is FaultKind.FULL_DISK else no_more_files
                with limit(self.process.child.pid):
                    await asyncio.sleep(fault.seconds)
            case _:
                assert self.proxy
                await self._break_link(self.proxy, fault)

    async def _break_link(self, proxy: FaultProxy, fault: Fault) -> None:
        if fault.kind is FaultKind.RESET:
            proxy.reset()
            return
        if fault.kind is FaultKind.DELAY:
            proxy.delay = fault.seconds / 10
        else:
            proxy.half_open()
        await asyncio.sleep(fault.seconds)
        proxy.mend()


class Fleet:
    """All processes end with the block."""

    def __init__(self, folder: Path, *, etcd: Etcd | None = None, nats: Nats | None = None, **environ: str) -> None:
        self._folder = folder
        self._services: dict[FaultKind, Service] = {}
        self._clock = folder / "clock"
        self._clock.write_bytes(struct.pack("d", 0.0))
        environ = {
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "CHAOS_CLOCK": str(self._clock),
            "PYTHONPATH": f"{CLOCK}:{SOURCE}",
            **environ,
        }
        if etcd:
            self._services[FaultKind.ETCD] = etcd
            environ["ETCD_ENDPOINTS"] = etcd.url
        if nats:
            self._services[FaultKind.NATS] = nats
            environ |= {"NATS_SERVER": nats.url, "DYN_REQUEST_PLANE": "nats"}
        self.stack = Stack(folder, environ)
        self.workers: list[FleetWorker] = []
        self.frontends: list[Frontend] = []
        self.faults_done: Counter[FaultKind] = Counter()
        self.fault_times: list[float] = []
        self._proxies: list[FaultProxy] = []
        self._suffering: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.other_host: Host | None = None
        """Where PARTITION cuts the cable."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        for task in self._suffering:
            task.cancel()
        await asyncio.gather(*self._suffering, return_exceptions=True)
        await self.stack.__aexit__()
        for proxy in self._proxies:
            await proxy.__aexit__()

    async def start(
        self,
        workers: int,
        command: Sequence[str],
        frontends: Sequence[Sequence[str]],
        environ: dict[str, str] | None = None,
        *,
        forked: bool = False,
    ) -> None:
        """Workers that each run `python COMMAND`, and a frontend for each list of flags, with an environment.

        Where they are `forked`, a worker that was killed is replaced at once.
        """
        environ = environ or {}
        forks = Forks(self.stack, self._folder) if forked else None
        if forks:
            await forks.start()
        added = [FleetWorker(self.stack, command, environ, forks=forks) for _ in range(workers)]
        await self._begin(added, frontends, environ)

    async def start_proxied(self, workers: int, flags: Sequence[str], frontends: Sequence[Sequence[str]]) -> None:
        """Mockers with a fault proxy in front of each."""
        added = []
        for _ in range(workers):
            port = free_port()
            proxy = await FaultProxy(port).__aenter__()
            self._proxies.append(proxy)
            command = [PROXIED_MOCKER, f"127.0.0.1:{proxy.port}", *flags]
            environ = {"DYN_TCP_RPC_PORT": str(port), "DYN_SYSTEM_PORT": str(free_port())}
            added.append(FleetWorker(self.stack, command, environ, proxy))
        await self._begin(added, frontends)

    async def _begin(
        self, added: list[FleetWorker], frontends: Sequence[Sequence[str]], environ: dict[str, str] | None = None
    ) -> None:
        await asyncio.gather(*(worker.start() for worker in added))
        self.workers += added
        self.frontends += await asyncio.gather(*(self.stack.frontend(*flags, **(environ or {})) for flags in frontends))
        for frontend in self.frontends:
            await frontend.until_instances(len(self.workers))

    async def do(self, fault: Fault) -> None:
        """Begin a fault as soon as another worker is whole: at its worker, or the next one that is whole."""
        if service := self._services.get(fault.kind):
            await asyncio.to_thread(service.stop)
            await asyncio.to_thread(service.start)
        elif fault.kind is FaultKind.CLOCK:
            # Written in one piece: processes have it mapped.
            jump = (fault.seconds - 2.0) * 100_000
            with self._clock.open("r+b", buffering=0) as file:
                file.write(struct.pack("d", jump))
        elif fault.kind is FaultKind.PARTITION:
            assert self.other_host
            with partition(self.other_host):
                await asyncio.sleep(fault.seconds)
        else:
            worker = self._at(fault.worker)
            while worker is None:
                self._changed.clear()
                await self._changed.wait()
                worker = self._at(fault.worker)
            worker.whole = False
            task = asyncio.create_task(self._until_recovered(worker, fault))
            self._suffering.add(task)
            task.add_done_callback(self._suffering.discard)
        self.faults_done[fault.kind] += 1
        self.fault_times.append(time.monotonic())

    def _at(self, number: int) -> FleetWorker | None:
        """The first worker from this number on that may suffer now."""
        last = [worker for worker in self.workers if worker.whole and not worker.spare]
        found = (each for each in (*self.workers[number:], *self.workers) if each.whole and last != [each])
        return next(found, None)

    async def _until_recovered(self, worker: FleetWorker, fault: Fault) -> None:
        await worker.suffer(fault)
        worker.whole = True
        self._changed.set()

    async def recovered(self) -> None:
        """Wait until no fault is being done."""
        while self._suffering:
            await asyncio.gather(*self._suffering)

    async def until_nothing_is_held(self) -> None:
        """Wait until no worker has a record of a hand-off or a block that is in use."""
        async with aiohttp.ClientSession() as session:

            async def cleared() -> bool:
                async with session.post(f"{self.frontends[0].url}/clear_kv_blocks") as answer:
                    found = await answer.json()
                return len(found["cleared_workers"]) == len(self.workers) and not found["failed_workers"]

            await until(cleared)
            for worker in self.workers:
                async with session.get(f"http://127.0.0.1:{worker.status_port}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                assert not [line for line in lines if line.startswith(HELD) and not line.endswith(" 0.0")]

    async def migrations(self) -> int:
        """How often streams have moved, by the frontends' own count."""
        return await self._counted(MIGRATIONS)

    async def splits(self) -> int:
        """How many prompts prefill workers have computed, by the frontends' own count."""
        return await self._counted("dynamo_component_router_disagg_decisions_total{", 'prefill="remote"')

    async def _counted(self, metric: str, label: str = "") -> int:
        total = 0.0
        async with aiohttp.ClientSession() as session:
            for frontend in self.frontends:
                async with session.get(f"{frontend.url}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                found = (line for line in lines if line.startswith(metric) and label in line)
                total += sum(float(line.rpartition(" ")[2]) for line in found)
        return int(total)
