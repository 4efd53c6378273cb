"""What `python -m dynamo.replay` and `dynamo plan` can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from dynamo.settings import Setting, Settings

Count = Annotated[int, Meta(ge=1, le=10**9)]
FRONTEND_MS = 3.2
"""Measured with prompts of 4,000 token ids, on idle cores (benchmarks/simulated.py)."""


class TrafficSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "traffic"

    # fmt: off
    trace_format: Annotated[Literal["mooncake", "dynamo", "azure", "agents"], Setting(
        "--trace-format", help="the rows of the trace")] = "mooncake"
    trace_block_size: Annotated[Count, Setting(
        "--trace-block-size", help="tokens that one hash id of a Mooncake trace stands for")] = 512
    speedup: Annotated[float, Meta(gt=0), Setting(
        "--arrival-speedup-ratio", help="divides the times between arrivals")] = 1.0
    copies: Annotated[Count, Setting(
        "--trace-copies", help="replay every row so often, each time with prompts of its own")] = 1
    limit: Annotated[int | None, Meta(ge=1), Setting(
        "--request-limit", help="stop after this number of requests", default="all")] = None
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


class SimulationSettings(Settings, frozen=True, kw_only=True):
    """What every simulation needs to know beside its traffic and the router's settings."""

    # fmt: off
    extra_engine_args: Annotated[str | None, Setting(
        "--extra-engine-args", help="arguments of the simulated engine, as JSON or the name of a file",
        metavar="JSON")] = None
    num_g2_blocks: Annotated[int | None, Meta(ge=0, le=2**24), Setting(
        "--num-g2-blocks", help="KV blocks of host memory below each worker's cache",
        default="as the engine's arguments say, or 0")] = None
    bandwidth_g1_to_g2_gbps: Annotated[float | None, Meta(ge=0), Setting(
        "--bandwidth-g1-to-g2-gbps", help="how fast blocks are copied to host memory", metavar="GB/S",
        default="14")] = None
    bandwidth_g2_to_g1_gbps: Annotated[float | None, Meta(ge=0), Setting(
        "--bandwidth-g2-to-g1-gbps", help="how fast they come back", metavar="GB/S", default="14")] = None
    num_g3_blocks: Annotated[int | None, Meta(ge=0, le=2**24), Setting(
        "--num-g3-blocks", help="KV blocks on disk below each worker's host memory",
        default="as the engine's arguments say, or 0")] = None
    bandwidth_g2_to_g3_gbps: Annotated[float | None, Meta(ge=0), Setting(
        "--bandwidth-g2-to-g3-gbps", help="how fast blocks are written to disk", metavar="GB/S", default="7")] = None
    bandwidth_g3_to_g2_gbps: Annotated[float | None, Meta(ge=0), Setting(
        "--bandwidth-g3-to-g2-gbps", help="how fast they are read into host memory", metavar="GB/S",
        default="7")] = None
    router_config: Annotated[str | None, Setting(
        "--router-config", help="router settings by the names of their flags, as JSON or the name of a file",
        metavar="JSON")] = None
    frontend_ms: Annotated[float | None, Meta(ge=0, le=1e6), Setting(
        "--frontend-ms", help="what a frontend adds to the time to the first token", metavar="MS",
        default=f"as in the profile, or {FRONTEND_MS}")] = None
    seed: Annotated[int, Setting("--seed", help="of all that is drawn at random")] = 0
    report_json: Annotated[str | None, Setting(
        "--report-json", help="write the report there too", metavar="FILE")] = None
    report_html: Annotated[str | None, Setting(
        "--report-html", help="write a page with plots there", metavar="FILE")] = None
    # fmt: on


class ReplaySettings(SimulationSettings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "simulation"

    # fmt: off
    replay_mode: Annotated[Literal["offline"], Setting(
        "--replay-mode", help="offline: in virtual time")] = "offline"
    workers: Annotated[int, Meta(ge=1, le=100_000), Setting("--num-workers", help="workers at the start")] = 1
    prefill_workers: Annotated[int, Meta(ge=0, le=100_000), Setting(
        "--num-prefill-workers", help="further workers that compute prompts; the others decode then")] = 0
    decode_workers: Annotated[int | None, Meta(ge=1, le=100_000), Setting(
        "--num-decode-workers", help="another name of --num-workers beside prefill workers")] = None
    prefill_engine_args: Annotated[str | None, Setting(
        "--prefill-engine-args", help="arguments of prefill workers in place of --extra-engine-args",
        metavar="JSON")] = None
    decode_engine_args: Annotated[str | None, Setting(
        "--decode-engine-args", help="arguments of decode workers in place of --extra-engine-args",
        metavar="JSON")] = None
    concurrency: Annotated[int | None, Meta(ge=1), Setting(
        "--replay-concurrency", help="requests under way at once; the trace's times do not count then",
        default="as they arrive")] = None
    incidents: Annotated[tuple[str, ...], Setting(
        "--incident", metavar="WHAT@SECONDS",
        help="kill:N, drain:N, slow:NxFACTOR (worker N) or join, at a time after the start; burst:xFACTOR@SECONDS"
        "+DURATION: FACTOR times the arrivals for a while; may be repeated")] = ()
    against: Annotated[tuple[str, ...], Setting(
        "--against", metavar="FLAGS",
        help="simulate once more with these flags in place of the others, and compare; may be repeated")] = ()
    # fmt: on
