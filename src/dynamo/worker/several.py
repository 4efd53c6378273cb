"""Several workers of one engine in one process, each with its own runtime and so its own instance id."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, structs

from dynamo.engines.registry import EngineSpec
from dynamo.model import AdapterConfig
from dynamo.process.addresses import own_address
from dynamo.process.readiness import report_ready
from dynamo.process.threads import in_thread
from dynamo.protocols.card import WorkerType
from dynamo.protocols.errors import StartError
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import DistributedRuntime, EndpointId
from dynamo.runtime.process import unless_shut_down
from dynamo.settings import Setting
from dynamo.settings.worker import WorkerSettings
from dynamo.worker.life import Interrupted, check_and_serve, start_engine
from dynamo.worker.model import find_model


def _are_ports(text: str) -> bool:
    return all(port.isascii() and port.isdecimal() and 0 < int(port) < 65536 for port in _words(text))


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


class SeveralSettings(WorkerSettings, frozen=True, kw_only=True):
    # fmt: off
    num_workers: Annotated[int, Meta(ge=1), Setting(
        "--num-workers", help="workers of this process", group="workers")] = 1
    stagger_delay: Annotated[float, Setting(
        "--stagger-delay",
        help="time between the workers' starts; -1: none up to 32 workers, then 0.1 to 0.2 and 2 after every 32",
        metavar="SECONDS", group="workers")] = -1.0
    bootstrap_ports: Annotated[tuple[str, ...], Setting(
        "--bootstrap-ports", help="a port for each prefill worker, at which decode workers meet it", metavar="PORTS",
        group="workers", valid=_are_ports, expects="ports from 1 to 65535, with commas between them")] = ()
    # fmt: on

    def pauses(self) -> list[float]:
        """Seconds to wait before the start of each worker. Raises ValueError."""
        workers, delay = self.num_workers, self.stagger_delay
        if delay >= 0 and delay != float("inf"):
            return [0.0] + [delay] * (workers - 1)
        if delay != -1:
            raise ValueError(f"--stagger-delay must be a number of seconds or -1, not {delay:g}")
        each = 0.0 if workers <= 32 else 0.1 if workers <= 128 else 0.2
        return [0.0 if not at else each + (2.0 if at % 32 == 0 else 0.0) for at in range(workers)]

    def ports(self, kind: WorkerType) -> list[int]:
        """One for each worker, or none. Raises ValueError."""
        ports = [int(port) for text in self.bootstrap_ports for port in _words(text)]
        if ports and kind is not WorkerType.Prefill:
            raise ValueError("--bootstrap-ports are for prefill workers: add --disaggregation-mode prefill")
        if ports and len(ports) != self.num_workers:
            raise ValueError(f"--bootstrap-ports: {len(ports)} ports for {self.num_workers} workers")
        return ports


async def serve_several(
    first: DistributedRuntime,
    spec: EngineSpec,
    place: Callable[[WorkerType], EndpointId],
    pauses: list[float],
    ports: list[int],
) -> None:
    """One worker after each pause, the first one in the runtime `first`, until that shuts down."""
    runtimes = [first, *(DistributedRuntime(config=first.config, status=first.status) for _ in pauses[1:])]
    registered: set[int] = set()
    hub = AdapterConfig.from_env(spec.environ).hub
    found = await unless_shut_down(first, in_thread(lambda: find_model(spec, hub, weights=True)))
    if found is None:
        raise Interrupted("interrupted")

    async def one(runtime: DistributedRuntime, port: int) -> None:
        with contextlib.suppress(Interrupted):  # others may have requests to finish
            async with start_engine(runtime, spec, found) as started:
                if port:
                    info = structs.replace(started.info, bootstrap=(_host(first), port))
                    started = structs.replace(started, info=info)
                at = place(started.info.worker_type)
                async with check_and_serve(runtime, started, spec, at) as card:
                    name = worker_name(runtime.instance_id)
                    said = f"{spec.engine} {runtime.instance_id:x} serves '{card.name}' at {at} as {name}"
                    print(said, file=sys.stderr, flush=True)
                    registered.add(runtime.instance_id)
                    if len(registered) == len(pauses):
                        report_ready(spec.environ)
                    await runtime.wait_for_shutdown()

    try:
        for runtime in runtimes[1:]:
            await runtime.start()
        async with asyncio.TaskGroup() as group:
            for pause, port, runtime in zip(pauses, ports or [0] * len(pauses), runtimes, strict=True):
                if not await _shut_down_within(first, pause):
                    group.create_task(one(runtime, port))
            await first.wait_for_shutdown()
            for runtime in runtimes[1:]:
                runtime.shutdown()
    except* StartError as errors:
        raise errors.exceptions[0] from None
    finally:
        for runtime in runtimes[1:]:
            await runtime.close()


def _host(runtime: DistributedRuntime) -> str:
    tcp = runtime.config.tcp
    return own_address(tcp.peers) if tcp.host in ("0.0.0.0", "::") else tcp.host


async def _shut_down_within(runtime: DistributedRuntime, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await runtime.wait_for_shutdown()
    except TimeoutError:
        pass
    return runtime.is_shutting_down
