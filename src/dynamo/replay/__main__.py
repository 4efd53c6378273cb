"""Replay traffic on a simulated fleet, in virtual time: `python -m dynamo.replay [TRACE] --num-workers N`.

The router, the delivery and the workers' scheduler are the ones that serve; only the clock and the GPU are not real.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from dynamo.engines.mocker import MockerArgs
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.config import RoutingConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.process import fail
from dynamo.settings import Setting, Settings, given
from dynamo.settings.arguments import FlagParser
from dynamo.simulate.incidents import Incident, read_incident
from dynamo.simulate.page import as_page
from dynamo.simulate.report import as_json, as_text
from dynamo.simulate.simulation import FRONTEND_MS, SimulationConfig, simulate
from dynamo.simulate.synthetic import Synthetic
from dynamo.simulate.traces import FORMATS
from dynamo.simulate.traffic import SimulatedRequest, scaled

COMMAND = "python -m dynamo.replay"
_PROGRESS_SECONDS = 0.5
Count = Annotated[int, Meta(ge=1, le=10**9)]


class TrafficSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "traffic"

    # fmt: off
    trace_format: Annotated[Literal["mooncake", "dynamo"], Setting(
        "--trace-format", help="the rows of the trace")] = "mooncake"
    trace_block_size: Annotated[Count, Setting(
        "--trace-block-size", help="tokens that one hash id of a Mooncake trace stands for")] = 512
    speedup: Annotated[float, Meta(gt=0), Setting(
        "--arrival-speedup-ratio", help="divides the times between arrivals")] = 1.0
    copies: Annotated[Count, Setting(
        "--trace-copies", help="replay every row so often, each time with prompts of its own")] = 1
    limit: Annotated[int | None, Meta(ge=1), Setting(
        "--request-limit", help="stop after so many requests", default="all")] = None
    input_tokens: Annotated[int | None, Meta(ge=1), Setting(
        "--input-tokens", help="without a trace: tokens of a first prompt")] = None
    output_tokens: Annotated[int | None, Meta(ge=1), Setting(
        "--output-tokens", help="without a trace: tokens of an answer")] = None
    request_count: Annotated[int | None, Meta(ge=1), Setting(
        "--request-count", help="without a trace: requests in all")] = None
    interval_ms: Annotated[float, Meta(ge=0), Setting(
        "--arrival-interval-ms", help="without a trace: mean time between arrivals", metavar="MS")] = 0.0
    turns: Annotated[Count, Setting("--turns-per-session", help="without a trace: requests of one session")] = 1
    shared_prefix: Annotated[float, Meta(ge=0, le=1), Setting(
        "--shared-prefix-ratio", help="without a trace: share of a prompt that its group has in common")] = 0.0
    groups: Annotated[Count, Setting(
        "--num-prefix-groups", help="without a trace: groups of sessions with a common prefix")] = 1
    think_ms: Annotated[float, Meta(ge=0), Setting(
        "--inter-turn-delay-ms", help="without a trace: mean time between an answer and the next turn", metavar="MS",
        )] = 0.0
    # fmt: on


class ReplaySettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "simulation"

    # fmt: off
    replay_mode: Annotated[Literal["offline"], Setting(
        "--replay-mode", help="offline: in virtual time")] = "offline"
    workers: Annotated[int, Meta(ge=1, le=100_000), Setting("--num-workers", help="workers at the start")] = 1
    concurrency: Annotated[int | None, Meta(ge=1), Setting(
        "--replay-concurrency", help="requests under way at once; the trace's times do not count then",
        default="as they arrive")] = None
    extra_engine_args: Annotated[str | None, Setting(
        "--extra-engine-args", help="arguments of the simulated engine, as JSON or the name of a file",
        metavar="JSON")] = None
    router_config: Annotated[str | None, Setting(
        "--router-config", help="router settings by the names of their flags, as JSON or the name of a file",
        metavar="JSON")] = None
    frontend_ms: Annotated[float, Meta(ge=0, le=1e6), Setting(
        "--frontend-ms", help="what a frontend adds to the time to the first token", metavar="MS")] = FRONTEND_MS
    incidents: Annotated[tuple[str, ...], Setting(
        "--incident", metavar="WHAT@SECONDS",
        help="kill:N, drain:N, slow:NxFACTOR (worker N) or join, at a time after the start; may be repeated")] = ()
    against: Annotated[tuple[str, ...], Setting(
        "--against", metavar="FLAGS",
        help="simulate once more with these flags in place of the others, and compare; may be repeated")] = ()
    seed: Annotated[int, Setting("--seed", help="of all that is drawn at random")] = 0
    report_json: Annotated[str | None, Setting(
        "--report-json", help="write the report there too", metavar="FILE")] = None
    report_html: Annotated[str | None, Setting(
        "--report-html", help="write a page with plots there", metavar="FILE")] = None
    # fmt: on


def parser() -> argparse.ArgumentParser:
    made = FlagParser(COMMAND, __doc__, TrafficSettings, ReplaySettings, RoutingConfig)
    made.add_argument("trace", nargs="?", help="the trace to replay; without one, traffic is made up")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        flags = _flags(words)
        # What every simulated worker logs as it comes and goes is of interest only to those who ask for it.
        quiet = {} if flags["verbosity"] else {"DYN_LOG": "error"}
        configure_dynamo_logging(LogConfig.from_env(quiet | dict(os.environ), verbosity=flags["verbosity"]))
        asked = ReplaySettings.from_env({}, **given(flags, ReplaySettings))
        runs = [simulation_of(flags)]
        runs += [
            simulation_of(_without_tuples(flags) | _given_flags(shlex.split(each)), each) for each in asked.against
        ]
        for path in (asked.report_json, asked.report_html):
            if path and not Path(path).resolve().parent.is_dir():
                raise ValueError(f"the folder of {path} does not exist")
        reports = []
        for config, traffic in runs:
            reports.append(simulate(config, partial(_shown, traffic, config.name)))
            print(f"{config.name}: simulated in {reports[-1].wall_seconds:.1f} s", file=sys.stderr, flush=True)
        print(as_text(*reports))
        if asked.report_json:
            Path(asked.report_json).write_bytes(as_json(*reports))
        if asked.report_html:
            Path(asked.report_html).write_text(as_page(*reports))
    except (ValueError, InvalidArgument) as error:
        raise fail(f"{error}; see {COMMAND} --help", code=2, error=error) from None
    except OSError as error:
        raise fail(str(error), error=error) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _flags(words: Sequence[str]) -> dict[str, Any]:
    return vars(parser().parse_args(words))


def _given_flags(words: Sequence[str]) -> dict[str, Any]:
    """Only what these words set."""
    return {name: value for name, value in _flags(words).items() if value not in (None, 0)}


def _without_tuples(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name != "against"}


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
    engine = MockerArgs.from_json(_object(asked.extra_engine_args, "--extra-engine-args"))
    config = SimulationConfig(
        name=name or f"{routing.mode}, {asked.workers} workers",
        workers=asked.workers,
        engine=engine,
        routing=routing,
        concurrency=asked.concurrency,
        frontend_seconds=asked.frontend_ms / 1000,
        incidents=[_incident(each) for each in asked.incidents],
        seed=asked.seed,
    )
    return config, _traffic(flags, TrafficSettings.from_env({}, **given(flags, TrafficSettings)), asked.seed)


def _traffic(flags: Mapping[str, Any], asked: TrafficSettings, seed: int) -> Callable[[], Iterable[SimulatedRequest]]:
    if flags["trace"]:
        path = Path(flags["trace"])
        if not path.is_file():
            raise ValueError(f"there is no trace {path}")
        read = FORMATS[asked.trace_format]
        return partial(_limited, lambda: scaled(read(path, asked.trace_block_size), asked.copies, asked.speedup), asked)
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
    return partial(_limited, lambda: scaled(made, asked.copies, asked.speedup), asked)


def _shown(make: Callable[[], Iterable[SimulatedRequest]], name: str) -> Iterable[SimulatedRequest]:
    """On a terminal, show now and then how far it is."""
    shown, interactive = time.monotonic(), sys.stderr.isatty()
    for number, request in enumerate(make()):
        if interactive and time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            when = f", {request.at:,.0f} s of the trace" if request.at is not None else ""
            print(f"\r{name}: {number:,} requests{when}\x1b[K", end="", file=sys.stderr, flush=True)
        yield request
    if interactive:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _limited(make: Callable[[], Iterable[SimulatedRequest]], asked: TrafficSettings) -> Iterable[SimulatedRequest]:
    for number, request in enumerate(make()):
        if asked.limit is not None and number >= asked.limit:
            return
        yield request


def _incident(text: str) -> Incident:
    try:
        return read_incident(text)
    except ValueError as error:
        raise ValueError(f"--incident must be {error}, not '{text}'") from None


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


if __name__ == "__main__":
    main()
