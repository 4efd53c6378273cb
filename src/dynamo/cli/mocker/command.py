"""Simulated workers: `python -m dynamo.mocker --model-path FOLDER [--num-workers N]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import uvloop
from msgspec import Meta, structs

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.engines.mocker.from_spec import words_of
from dynamo.engines.mocker.profile import timing_for
from dynamo.handoff.pairing import TRANSFER
from dynamo.model import HubConfig, LocalModel, build_card, default_name, open_card, resolve
from dynamo.pipeline.output_formats import with_parsers
from dynamo.process.own_address import own_address
from dynamo.process.readiness import report_ready
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType, WorkerType
from dynamo.protocols.errors import InvalidArgument, StartError
from dynamo.runtime import DistributedRuntime, Endpoint, EndpointId
from dynamo.runtime import RuntimeConfig as Network
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.names import DEFAULT_COMPONENT, DEFAULT_NAMESPACE
from dynamo.runtime.plane.admission import RequestLimit, request_limit
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit, unless_shut_down
from dynamo.settings import Setting, Settings, given, options, read
from dynamo.settings.arguments import FlagParser
from dynamo.settings.network import NetworkSettings
from dynamo.settings.worker import (
    EngineQueueLimit,
    EngineRequestLimit,
    MigrationLimit,
    ModelName,
    StepTraceSettings,
)
from dynamo.worker.health import check_answers
from dynamo.worker.life import closed_at_end, registered


def _ports(text: str) -> tuple[str, ...]:
    ports = tuple(text.replace(",", " ").split())
    if not all(port.isascii() and port.isdecimal() and 0 < int(port) < 65536 for port in ports):
        raise ValueError("ports from 1 to 65535, with commas between them")
    return ports


class MockerSettings(Settings, frozen=True, kw_only=True):
    # fmt: off
    model_path: Annotated[str, Setting(
        "--model-path", help="where the tokenizer is: a folder, a Hugging Face id, or tiny, the bundled model",
        metavar="MODEL", group="model")]
    model_name: ModelName = None
    endpoint: Annotated[str | None, Setting(
        "--endpoint",
        help="where to serve; the component of a prefill worker is prefill, of a decode worker decode",
        metavar="NAME", group="workers", default="dyn://dynamo.backend.generate")] = None
    namespace: Annotated[str, Setting(
        variables="DYN_NAMESPACE", help="namespace to serve in, without --endpoint")] = DEFAULT_NAMESPACE
    component: Annotated[str | None, Setting(
        variables="DYN_COMPONENT", help="component to serve, without --endpoint",
        default="backend; prefill or decode for workers that do only that")] = None
    num_workers: Annotated[int, Meta(ge=1), Setting(
        "--num-workers", help="workers of this process", group="workers")] = 1
    stagger_delay: Annotated[float, Setting(
        "--stagger-delay",
        help="time between the workers' starts; -1: none up to 32 workers, then 0.1 to 0.2 and 2 after every 32",
        metavar="SECONDS", group="workers")] = -1.0
    extra_engine_args: Annotated[str | None, Setting(
        "--extra-engine-args", help="JSON: engine arguments; the flags below fill what it leaves out", metavar="FILE",
        group="engine")] = None
    bootstrap_ports: Annotated[tuple[str, ...], Setting(
        "--bootstrap-ports", help="a port for each prefill worker, at which decode workers meet it", metavar="PORTS",
        group="workers", parse=_ports)] = ()
    # fmt: on
    migration_limit: MigrationLimit = 0
    engine_request_limit: EngineRequestLimit = 0
    engine_queue_limit: EngineQueueLimit = 16


def parser() -> argparse.ArgumentParser:
    return FlagParser(
        "python -m dynamo.mocker", __doc__, MockerSettings, MockerArgs, StepTraceSettings, NetworkSettings
    )


def main(argv: list[str] | None = None) -> None:
    flags = vars(parser().parse_args(argv))
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=flags["verbosity"]))
        asked = MockerSettings.from_env(os.environ, **given(flags, MockerSettings))
        args = engine_args(flags)
        timing = timing_for(args)
        network = Network.from_env(os.environ, **given(flags, NetworkSettings))
        steps = StepTraceSettings.from_env(os.environ, **given(flags, StepTraceSettings))
        endpoint = (
            EndpointId.parse(asked.endpoint)
            if asked.endpoint
            else default_endpoint(args, asked.namespace, asked.component)
        )
        pauses = stagger(asked.num_workers, asked.stagger_delay)
        ports = bootstrap_ports(asked, args)
    except (ValueError, InvalidArgument, StartError) as error:
        raise fail(str(error), code=2, error=error) from None
    try:
        model = resolve(asked.model_path, config=HubConfig.from_env(os.environ), weights=False)
        card = card_for(model, asked.model_name or default_name(asked.model_path), args, asked.migration_limit)
        vocabulary = words_of(open_card(card, HubConfig.from_env(os.environ)))
    except StartError as error:
        raise fail(str(error), error=error) from None

    def engine() -> MockerEngine:
        return MockerEngine(args.within(card), vocabulary=vocabulary, timing=timing)

    host = network.tcp.host
    if host in ("0.0.0.0", "::"):
        host = own_address(network.tcp.peers)
    cards = [with_bootstrap(card, host, port) for port in ports] or [card] * len(pauses)
    limit = request_limit(asked.engine_request_limit, asked.engine_queue_limit)
    uvloop.run(serve(pauses, network, endpoint, cards, engine, limit, steps))


def engine_args(flags: Mapping[str, Any]) -> MockerArgs:
    file = flags["extra_engine_args"]
    try:
        source = Path(file).read_bytes() if file else b"{}"
    except OSError as error:
        raise ValueError(f"cannot read --extra-engine-args {file}: {error.strerror}") from error
    values = read(MockerArgs, {}, given(flags, MockerArgs))
    names = {option.field: option.name for option in options(MockerArgs)}
    return MockerArgs.from_json(source, [(names[field], field, value) for field, value in values.items()])


def default_endpoint(args: MockerArgs, namespace: str, component: str | None = None) -> EndpointId:
    """Each part of a request has a component of its own."""
    part = DEFAULT_COMPONENT if args.worker_type is WorkerType.Aggregated else args.worker_type.value
    return EndpointId(namespace, component or part)


def card_for(model: LocalModel, name: str, args: MockerArgs, migration_limit: int) -> ModelCard:
    card = build_card(
        model,
        name=name,
        model_type=ModelType.Backend,
        worker_type=args.worker_type,
        context_length=args.max_model_len,
        kv_cache_block_size=args.block_size,
        migration_limit=migration_limit,
        runtime_config=ModelRuntimeConfig(
            total_kv_blocks=args.num_gpu_blocks,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            data_parallel_size=args.dp_size,
            runtime_data={} if args.worker_type is WorkerType.Aggregated else {TRANSFER: args.transfer},
        ),
    )
    return with_parsers(card)


def bootstrap_ports(asked: MockerSettings, args: MockerArgs) -> list[int]:
    """Checked: one for each worker, and only for prefill workers."""
    ports = [int(port) for port in asked.bootstrap_ports]
    if ports and args.worker_type is not WorkerType.Prefill:
        raise ValueError("--bootstrap-ports are for prefill workers: add --disaggregation-mode prefill")
    if ports and len(ports) != asked.num_workers:
        raise ValueError(f"--bootstrap-ports: {len(ports)} ports for {asked.num_workers} workers")
    return ports


def with_bootstrap(card: ModelCard, host: str, port: int) -> ModelCard:
    runtime = structs.replace(card.runtime_config, bootstrap_host=host, bootstrap_port=port)
    return structs.replace(card, runtime_config=runtime)


def stagger(workers: int, delay: float) -> list[float]:
    """Seconds to wait before the start of each worker."""
    if delay >= 0 and delay != float("inf"):
        return [0.0] + [delay] * (workers - 1)
    if delay != -1:
        raise ValueError(f"--stagger-delay must be a number of seconds or -1, not {delay:g}")
    each = 0.0 if workers <= 32 else 0.1 if workers <= 128 else 0.2
    return [0.0 if not at else each + (2.0 if at % 32 == 0 else 0.0) for at in range(workers)]


async def serve(
    pauses: list[float],
    network: Network,
    endpoint: EndpointId,
    cards: list[ModelCard],
    make: Callable[[], MockerEngine],
    limit: RequestLimit | None,
    steps: StepTraceSettings,
) -> None:
    """One worker after each pause, each with its own runtime and so its own instance id."""
    first = await start_or_exit(lambda: DistributedRuntime(config=network))
    others = [await start_or_exit(lambda: DistributedRuntime(config=network, status=first.status)) for _ in pauses[1:]]

    registered_workers: set[int] = set()

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for pause, card, runtime in zip(pauses, cards, (first, *others), strict=True):
                    if not await shut_down_within(pause):
                        group.create_task(one(runtime, card))
                await first.wait_for_shutdown()
                for runtime in others:
                    runtime.shutdown()
        except* StartError as group_of:
            raise group_of.exceptions[0] from None

    async def shut_down_within(seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await first.wait_for_shutdown()
        except TimeoutError:
            pass
        return first.is_shutting_down

    async def one(runtime: DistributedRuntime, card: ModelCard) -> None:
        engine = make()
        async with closed_at_end(runtime, engine, "mocker"):
            if await unless_shut_down(first, engine.start()) is None:
                return
            await check_answers(engine, card.name)
            async with registered(Endpoint(runtime, endpoint), engine, card, limit=limit, steps=steps):
                print(f"mocker {runtime.instance_id:x} serves '{card.name}' at {endpoint}", file=sys.stderr, flush=True)
                registered_workers.add(runtime.instance_id)
                if len(registered_workers) == len(pauses):
                    report_ready(os.environ)
                await runtime.wait_for_shutdown()

    try:
        await run_until_signalled(first, work())
    finally:
        for runtime in others:
            await runtime.close()
