"""Simulated workers: `python -m dynamo.mocker --model-path FOLDER [--num-workers N]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.engines.mocker.from_spec import words_of
from dynamo.engines.mocker.profile import timing_for
from dynamo.llm.register import register_card
from dynamo.model import HubConfig, LocalModel, build_card, default_name, open_card, resolve
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType, WorkerType
from dynamo.protocols.errors import InvalidArgument, StartError
from dynamo.runtime import DistributedRuntime, Endpoint, EndpointId
from dynamo.runtime import RuntimeConfig as Network
from dynamo.runtime.flags import FlagParser
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.names import DEFAULT_COMPONENT, DEFAULT_NAMESPACE
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit, unless_shut_down
from dynamo.worker import serve_engine

_ENGINE_FLAGS: dict[str, tuple[type[Any], str]] = {
    "engine_type": (str, "the engine to imitate: vllm"),
    "num_gpu_blocks_override": (int, "KV blocks each worker has (16384)"),
    "block_size": (int, "tokens in a KV block (64)"),
    "max_model_len": (int, "longest sequence, prompt included (the model's)"),
    "max_num_seqs": (int, "requests running at once (256)"),
    "max_num_batched_tokens": (int, "tokens computed in one step (8192)"),
    "preemption_mode": (str, "which request gives way: lifo or fifo (lifo)"),
    "speedup_ratio": (float, "divides all modelled times; 0 takes no time (1.0)"),
    "decode_speedup_ratio": (float, "divides the times of decode steps (1.0)"),
    "data_parallel_size": (int, "ranks in each worker (1)"),
    "startup_time": (float, "seconds before a worker is ready"),
    "watermark": (float, "share of blocks kept free when admitting (0.01)"),
    "planner_profile_data": (str, "a profiler's .npz with the times to use"),
    "disaggregation_mode": (str, "agg, prefill or decode (agg)"),
}


def parser() -> argparse.ArgumentParser:
    flags = FlagParser("python -m dynamo.mocker", __doc__)
    flags.add_argument(
        "--model-path",
        required=True,
        help="where the tokenizer is: a folder, a Hugging Face id, or tiny, the bundled one",
    )
    flags.add_argument("--model-name", help="the name to serve it under (the folder's)")
    flags.add_argument(
        "--endpoint",
        help="where to serve (dyn://dynamo.backend.generate; DYN_NAMESPACE is another namespace, a prefill worker's "
        "component is prefill)",
    )
    flags.add_argument("--num-workers", type=int, default=1, help="workers in this process (1)")
    flags.add_argument(
        "--stagger-delay",
        type=float,
        default=-1.0,
        help="seconds between the workers' starts; -1: none up to 32 workers, then 0.1 to 0.2 and 2 after every 32",
    )
    flags.add_argument(
        "--extra-engine-args", metavar="FILE", help="a JSON file of engine arguments; flags fill what it lacks"
    )
    flags.add_argument("--migration-limit", type=int, default=0, help="times a request may move to another worker (0)")
    for name, (kind, what) in _ENGINE_FLAGS.items():
        flags.add_argument(f"--{name.replace('_', '-')}", type=kind, help=what)
    for name in ("enable_prefix_caching", "enable_chunked_prefill"):
        flags.add_argument(f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, default=None)
    flags.add_argument("--reasoning", type=json_object, help="JSON: the tokens that begin and end thinking, its share")
    flags.add_argument("--discovery-backend", help="memory, file or etcd (DYN_DISCOVERY_BACKEND)")
    flags.add_argument("--request-plane", help="memory, tcp or nats (DYN_REQUEST_PLANE)")
    flags.add_argument("--event-plane", help="memory, zmq or nats (DYN_EVENT_PLANE)")
    flags.add_argument("-v", action="count", default=0, dest="verbosity", help="log more: -v debug, -vv all")
    return flags


def main(argv: list[str] | None = None) -> None:
    flags = parser().parse_args(argv)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=flags.verbosity))
        args = engine_args(flags)
        timing = timing_for(args)
        network = Network.from_env(
            os.environ,
            discovery_backend=flags.discovery_backend,
            request_plane=flags.request_plane,
            event_plane=flags.event_plane,
        )
        endpoint = EndpointId.parse(flags.endpoint) if flags.endpoint else default_endpoint(args, os.environ)
        if flags.num_workers < 1:
            raise ValueError(f"--num-workers must be at least 1, not {flags.num_workers}")
        if not 0 <= flags.migration_limit <= 1023:
            raise ValueError(f"--migration-limit must be from 0 to 1023, not {flags.migration_limit}")
        pauses = stagger(flags.num_workers, flags.stagger_delay)
    except (ValueError, InvalidArgument, StartError) as error:
        raise fail(str(error), code=2, error=error) from None
    try:
        model = resolve(flags.model_path, config=HubConfig.from_env(os.environ), weights=False)
        card = card_for(model, flags.model_name or default_name(flags.model_path), args, flags.migration_limit)
        vocabulary = words_of(open_card(card, HubConfig.from_env(os.environ)))
    except StartError as error:
        raise fail(str(error), error=error) from None

    def engine() -> MockerEngine:
        return MockerEngine(args.within(card), vocabulary=vocabulary, timing=timing)

    uvloop.run(serve(pauses, network, endpoint, card, engine))


def engine_args(flags: argparse.Namespace) -> MockerArgs:
    file = flags.extra_engine_args
    try:
        source = Path(file).read_bytes() if file else b"{}"
    except OSError as error:
        raise ValueError(f"cannot read --extra-engine-args {file}: {error.strerror}") from error
    names = (*_ENGINE_FLAGS, "reasoning", "enable_prefix_caching", "enable_chunked_prefill")
    given = [(f"--{name.replace('_', '-')}", name, getattr(flags, name)) for name in names]
    return MockerArgs.from_json(source, [flag for flag in given if flag[2] is not None])


def default_endpoint(args: MockerArgs, environ: Mapping[str, str]) -> EndpointId:
    """Workers that do not do the same work are not found in one place."""
    component = "prefill" if args.worker_type is WorkerType.Prefill else DEFAULT_COMPONENT
    return EndpointId(environ.get("DYN_NAMESPACE") or DEFAULT_NAMESPACE, component)


def card_for(model: LocalModel, name: str, args: MockerArgs, migration_limit: int) -> ModelCard:
    return build_card(
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
        ),
    )


def json_object(text: str) -> Any:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not a JSON object: {error}") from None


def stagger(workers: int, delay: float) -> list[float]:
    """How long to wait before each worker."""
    if delay >= 0 and delay != float("inf"):
        return [0.0] + [delay] * (workers - 1)
    if delay != -1:
        raise ValueError(f"--stagger-delay must be a number of seconds or -1, not {delay:g}")
    each = 0.0 if workers <= 32 else 0.1 if workers <= 128 else 0.2
    return [0.0 if not at else each + (2.0 if at % 32 == 0 else 0.0) for at in range(workers)]


async def serve(
    pauses: list[float], network: Network, endpoint: EndpointId, card: ModelCard, make: Callable[[], MockerEngine]
) -> None:
    """One worker for each pause before it. Each has a runtime, and so an instance, of its own."""
    first = await start_or_exit(lambda: DistributedRuntime(config=network))
    others = [await start_or_exit(lambda: DistributedRuntime(config=network, status=first.status)) for _ in pauses[1:]]

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for pause, runtime in zip(pauses, (first, *others), strict=True):
                    if not await shut_down_within(pause):
                        group.create_task(one(runtime))
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

    async def one(runtime: DistributedRuntime) -> None:
        engine = make()
        place = Endpoint(runtime, endpoint)
        try:
            if await unless_shut_down(first, engine.start()) is None:
                return
            await register_card(place, card)
            print(f"mocker {runtime.instance_id:x} serves '{card.name}' at {endpoint}", file=sys.stderr, flush=True)
            await serve_engine(place, engine, card.name)
        finally:
            await engine.stop()

    try:
        await run_until_signalled(first, work())
    finally:
        for runtime in others:
            await runtime.close()


if __name__ == "__main__":
    main()
