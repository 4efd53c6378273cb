"""One simulation as its flags describe it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dynamo.engines.mocker import MockerArgs, read_profile
from dynamo.engines.mocker.args import Flag
from dynamo.engines.mocker.profile import About
from dynamo.lab.replay.settings import FRONTEND_MS, ReplaySettings, TrafficSettings
from dynamo.lab.simulate.incidents import Incident, read_incident
from dynamo.lab.simulate.simulation import SimulationConfig
from dynamo.lab.simulate.synthetic import Synthetic
from dynamo.lab.simulate.traces import FORMATS
from dynamo.lab.simulate.traffic import SimulatedRequest, scaled
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.config import RoutingConfig
from dynamo.settings import given

_TIER_FLAGS = (
    "num_g2_blocks",
    "bandwidth_g1_to_g2_gbps",
    "bandwidth_g2_to_g1_gbps",
    "num_g3_blocks",
    "bandwidth_g2_to_g3_gbps",
    "bandwidth_g3_to_g2_gbps",
)


def simulation_of(
    flags: Mapping[str, Any], name: str = ""
) -> tuple[SimulationConfig, Callable[[], Iterable[SimulatedRequest]]]:
    """One simulation as its flags describe it; a ValueError or InvalidArgument says what is wrong."""
    asked = ReplaySettings.from_env({}, **given(flags, ReplaySettings))
    routing_flags: dict[str, Any] = {"router_mode": "kv"} | given(flags, RoutingConfig)
    if asked.router_config:
        routing_flags = _object(asked.router_config, "--router-config") | given(flags, RoutingConfig)
    mode = str(routing_flags.get("router_mode", "kv"))
    routing_flags["router_mode"] = {"kv_router": "kv"}.get(mode, mode.replace("_", "-"))
    try:
        routing = RoutingConfig.from_env({}, **routing_flags)
    except TypeError as error:
        raise ValueError(f"--router-config: {error}") from None
    workers, engine, prefill_engine, about = _fleet(asked)
    frontend_ms = next(ms for ms in (asked.frontend_ms, about.frontend_ms, FRONTEND_MS) if ms is not None)
    config = SimulationConfig(
        name=name or f"{routing.mode}, {_size(workers, asked.prefill_workers)} workers",
        workers=workers,
        prefill_workers=asked.prefill_workers,
        engine=engine,
        prefill_engine=prefill_engine,
        routing=routing,
        concurrency=asked.concurrency,
        frontend_seconds=frontend_ms / 1000,
        incidents=[_incident(each) for each in asked.incidents],
        seed=asked.seed,
    )
    traffic = _traffic(flags, TrafficSettings.from_env({}, **given(flags, TrafficSettings)), asked.seed)
    return config, partial(_of_model, traffic, about.model, engine.planner_profile_data) if about.model else traffic


def _fleet(asked: ReplaySettings) -> tuple[int, MockerArgs, MockerArgs | None, About]:
    """How many workers decode or do everything, their arguments, those of prefill workers, and what a profile says."""
    split = {"--num-decode-workers": asked.decode_workers, "--decode-engine-args": asked.decode_engine_args,
             "--prefill-engine-args": asked.prefill_engine_args}  # fmt: skip
    useless = [flag for flag, value in split.items() if value is not None and not asked.prefill_workers]
    if useless:
        raise ValueError(f"{useless[0]} needs --num-prefill-workers")
    source = ("--extra-engine-args", asked.extra_engine_args)
    decode = ("--decode-engine-args", asked.decode_engine_args) if asked.decode_engine_args else source
    tiers = _tier_flags(asked)
    engine, about = engine_of(_object(decode[1], decode[0]), tiers)
    prefill = None
    if asked.prefill_engine_args:
        prefill, other = engine_of(_object(asked.prefill_engine_args, "--prefill-engine-args"), tiers)
        if other.model and about.model and other.model != about.model:
            raise ValueError(f"prefill workers have a profile of '{other.model}', the others one of '{about.model}'")
    elif asked.decode_engine_args and asked.prefill_workers:
        prefill, _ = engine_of(_object(asked.extra_engine_args, "--extra-engine-args"), tiers)
    return asked.decode_workers or asked.workers, engine, prefill, about


def _size(workers: int, prefill_workers: int) -> str:
    return f"{prefill_workers}+{workers}" if prefill_workers else f"{workers}"


def _tier_flags(asked: ReplaySettings) -> list[Flag]:
    values = [(name, getattr(asked, name)) for name in _TIER_FLAGS]
    return [(f"--{name.replace('_', '-')}", name, value) for name, value in values if value is not None]


def engine_of(args: Mapping[str, Any], flags: Iterable[Flag] = ()) -> tuple[MockerArgs, About]:
    """The engine, with what its profile says about it where the arguments do not, and the rest of what that says."""
    about = About()
    if isinstance(profile := args.get("planner_profile_data"), str):
        about = read_profile(Path(profile)).about
    return MockerArgs.from_json({**about.engine, **args}, flags), about


def _of_model(
    make: Callable[[], Iterable[SimulatedRequest]], model: str, profile: str | None
) -> Iterable[SimulatedRequest]:
    """Refuse requests for a model other than the one the profile was measured with."""
    for request in make():
        if request.model and request.model != model:
            raise InvalidArgument(
                f"{request.label} asks for '{request.model}', but {profile} is a profile of '{model}'"
            )
        yield request


def _traffic(flags: Mapping[str, Any], asked: TrafficSettings, seed: int) -> Callable[[], Iterable[SimulatedRequest]]:
    if flags["trace"]:
        path = Path(flags["trace"])
        if not path.is_file() and not path.is_dir():
            raise ValueError(f"there is no trace {path}")
        read = FORMATS[asked.trace_format]
        rows = partial(read, path, asked.trace_block_size)
        return partial(_limited, lambda: scaled(rows(), asked.copies, asked.speedup), asked, str(path))
    if not asked.request_count or not asked.input_tokens or not asked.output_tokens:
        raise ValueError("name a trace, or give --request-count, --input-tokens and --output-tokens")
    made = Synthetic(
        requests=asked.request_count,
        input_tokens=asked.input_tokens,
        output_tokens=asked.output_tokens,
        interval=asked.interval_ms / 1000,
        turns=asked.turns,
        shared_prefix=asked.shared_prefix,
        groups=asked.groups,
        think=asked.think_ms / 1000,
        seed=seed,
    )
    return partial(_limited, lambda: scaled(made, asked.copies, asked.speedup), asked, "the traffic")


def _limited(
    make: Callable[[], Iterable[SimulatedRequest]], asked: TrafficSettings, trace: str
) -> Iterable[SimulatedRequest]:
    number = -1
    for number, request in enumerate(make()):
        if asked.limit is not None and number >= asked.limit:
            return
        yield request
    if number < 0:
        raise InvalidArgument(f"{trace} has no request that can be replayed")


def _incident(text: str) -> Incident:
    try:
        return read_incident(text)
    except ValueError as error:
        raise ValueError(f"--incident {error}") from None


def _object(source: str | None, flag: str) -> dict[str, Any]:
    """JSON given as it is, or in a file."""
    if source is None:
        return {}
    text: bytes | str = source
    if not source.lstrip().startswith("{"):
        try:
            text = Path(source).read_bytes()
        except OSError as error:
            raise ValueError(f"{flag}: {error}") from None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{flag}: {error}") from None
