"""The mocker's arguments: those it shares with vLLM and its own, each with its flag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, structs

from dynamo.engines.registry import EngineSpec, own_flags
from dynamo.protocols.card import ModelCard, WorkerType
from dynamo.protocols.errors import InvalidArgument
from dynamo.settings import Setting

PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
Factor = Annotated[float, Meta(ge=0)]
Flag = tuple[str, str, Any]
"""The flag, its argument and its value."""


class ReasoningArgs(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The first `thinking_ratio` of an answer stands between these two tokens."""

    start_thinking_token_id: TokenId
    end_thinking_token_id: TokenId
    thinking_ratio: Annotated[float, Meta(ge=0, le=1)]


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"a JSON object ({error})") from None


class MockerArgs(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    GROUP: ClassVar[str] = "engine"

    # fmt: off
    engine_type: Annotated[Literal["vllm"], Setting("--engine-type", help="the engine to imitate")] = "vllm"
    num_gpu_blocks: Annotated[int, Meta(ge=1, le=2**24), Setting(
        "--num-gpu-blocks-override", help="KV blocks that requests can hold, per rank")] = 16384
    """vLLM keeps one more of its own for padding: its N + 1 is this N."""
    block_size: Annotated[PositiveInt, Setting("--block-size", help="tokens in a KV block")] = 64
    max_model_len: Annotated[Annotated[int, Meta(ge=2, le=2**31 - 1)] | None, Setting(
        "--max-model-len", help="longest sequence, prompt included", default="the model's")] = None
    max_num_seqs: Annotated[PositiveInt, Setting("--max-num-seqs", help="requests running at once")] = 256
    max_num_batched_tokens: Annotated[PositiveInt, Setting(
        "--max-num-batched-tokens", help="tokens computed in one step")] = 8192
    enable_prefix_caching: Annotated[bool, Setting(
        "--enable-prefix-caching", help="reuse the blocks of earlier prompts")] = True
    enable_chunked_prefill: Annotated[bool, Setting(
        "--enable-chunked-prefill", help="compute a prompt in several steps")] = True
    async_scheduling: Annotated[bool, Setting(
        "--async-scheduling", help="schedule a step while the one before it runs, as vLLM does on GPUs")] = False
    preemption_mode: Annotated[Literal["lifo", "fifo"], Setting(
        "--preemption-mode", help="which request is preempted")] = "lifo"
    watermark: Annotated[float, Meta(ge=0, lt=1), Setting(
        "--watermark", help="share of the blocks kept free when admitting a request")] = 0.01
    """vLLM V1 behaves like 0."""
    speedup_ratio: Annotated[Factor, Setting(
        "--speedup-ratio", help="divides all modelled times; 0 takes no time")] = 1.0
    decode_speedup_ratio: Annotated[Factor, Setting(
        "--decode-speedup-ratio", help="divides the times of decode steps")] = 1.0
    dp_size: Annotated[int, Meta(ge=1, le=1024), Setting("--data-parallel-size", help="ranks in each worker")] = 1
    startup_time: Annotated[Factor | None, Setting(
        "--startup-time", help="time before a worker is ready", metavar="SECONDS", default="none")] = None
    planner_profile_data: Annotated[str | None, Setting(
        "--planner-profile-data", help="a profiler's .npz with the times to use", metavar="FILE",
        default="the published curves")] = None
    disaggregation_mode: Annotated[Literal["agg", "prefill", "decode"], Setting(
        "--disaggregation-mode", help="what the worker does")] = "agg"
    kv_transfer_bandwidth: Annotated[Factor, Setting(
        "--kv-transfer-bandwidth", help="how fast computed prompts arrive; 0 takes no time", metavar="GB/S")] = 64.0
    kv_bytes_per_token: Annotated[PositiveInt, Setting(
        "--kv-bytes-per-token", help="size of a computed prompt per token, for the time of its transfer")] = 131072
    kv_transfer_timing_mode: Annotated[Literal["full_prompt", "destination_missing"], Setting(
        "--kv-transfer-timing-mode", help="which blocks are transferred: all of a prompt, or those not there yet",
        )] = "full_prompt"
    num_g2_blocks: Annotated[int, Meta(ge=0, le=2**24), Setting(
        "--num-g2-blocks", help="KV blocks of host memory for what the cache has no room for, per rank; 0: none")] = 0
    bandwidth_g1_to_g2_gbps: Annotated[Factor, Setting(
        "--bandwidth-g1-to-g2-gbps", help="how fast blocks are copied to host memory; 0 takes no time",
        metavar="GB/S")] = 14.0
    bandwidth_g2_to_g1_gbps: Annotated[Factor, Setting(
        "--bandwidth-g2-to-g1-gbps", help="how fast they come back; 0 takes no time", metavar="GB/S")] = 14.0
    num_g3_blocks: Annotated[int, Meta(ge=0, le=2**24), Setting(
        "--num-g3-blocks", help="KV blocks on disk for what host memory has no room for, per rank; 0: none")] = 0
    bandwidth_g2_to_g3_gbps: Annotated[Factor, Setting(
        "--bandwidth-g2-to-g3-gbps", help="how fast blocks are written to disk; 0 takes no time",
        metavar="GB/S")] = 7.0
    bandwidth_g3_to_g2_gbps: Annotated[Factor, Setting(
        "--bandwidth-g3-to-g2-gbps", help="how fast they are read into host memory; 0 takes no time",
        metavar="GB/S")] = 7.0
    reasoning: Annotated[ReasoningArgs | None, Setting(
        "--reasoning", help="the token ids that begin and end thinking, and its share of an answer", metavar="JSON",
        parse=_json_object)] = None
    # fmt: on

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> MockerArgs:
        """Raises InvalidArgument. The card follows the flags, so the file of arguments must not contradict them."""
        from .profile import timing_for  # it imports this module

        try:
            own = own_flags(cls, spec.arguments)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        shared = (
            ("--kv-cache-block-size", "block_size", spec.kv_cache_block_size),
            ("--context-length", "max_model_len", spec.context_length),
        )
        flags = [each for each in shared if each[2] is not None]
        args = cls.from_json(spec.extra_engine_args, [*flags, *((flag, name, it) for name, (flag, it) in own.items())])
        timing_for(args)  # a profile that cannot be read is a wrong flag
        return args

    @classmethod
    def from_json(cls, source: bytes | str | Mapping[str, Any], flags: Iterable[Flag] = ()) -> MockerArgs:
        """From the text of an `--extra-engine-args` file or its dict; an InvalidArgument names what is wrong.

        Flags fill what the file leaves out, and must not contradict it.
        """
        values = _mapping(source)
        for alias, name in _ALIASES.items():
            if alias in values:
                if name in values:
                    raise InvalidArgument(f"mocker argument '{alias}' is another name for '{name}': give only one")
                values[name] = values.pop(alias)
        _read_roles(values)
        said = dict.fromkeys(values, "the file of engine arguments")
        for flag, alias, value in flags:
            name = _ALIASES.get(alias, alias)
            if values.setdefault(name, value) != value:
                raise InvalidArgument(f"{flag} says {value}, {said[name]} says {values[name]}")
            said.setdefault(name, flag)
        for key in values:
            if key in _UPSTREAM_ONLY or key.startswith(("aic_", "sglang_", "trtllm_")):
                raise InvalidArgument(f"mocker argument '{key}' is not implemented here")
            if key not in cls.__struct_fields__:
                known = ", ".join(sorted((*cls.__struct_fields__, *_ALIASES)))
                raise InvalidArgument(f"unknown mocker argument '{key}'; known are: {known}")
        try:
            args = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"mocker argument {_named(str(error))}") from None
        for name in _FINITE:
            value = getattr(args, name)
            if value is not None and value == float("inf"):
                raise InvalidArgument(f"mocker argument '{name}': must be finite")
        if args.disaggregation_mode != "agg" and not args.enable_prefix_caching:
            raise InvalidArgument("a prefill or decode mocker hands over cached blocks: leave prefix caching on")
        if args.num_g2_blocks and not args.enable_prefix_caching:
            raise InvalidArgument("'num_g2_blocks' keeps cached blocks: leave prefix caching on")
        if args.num_g3_blocks and not args.num_g2_blocks:
            raise InvalidArgument("'num_g3_blocks' keeps what host memory has no room for: give 'num_g2_blocks' too")
        return args

    def within(self, card: ModelCard) -> MockerArgs:
        """Limited to the card's context length, which may be less than fits in the blocks."""
        return structs.replace(self, max_model_len=card.context_length)

    @property
    def worker_type(self) -> WorkerType:
        return _WORKER_TYPES[self.disaggregation_mode]

    @property
    def transfer(self) -> str:
        """The form of what prefill and decode mockers hand over."""
        return "mocker"

    @property
    def capacity_tokens(self) -> int:
        return self.num_gpu_blocks * self.block_size

    @property
    def context_limit(self) -> int:
        """Longest sequence, prompt included, that can be computed alone, and once more after a preemption.

        The last token of an answer is never computed, which is why one more than capacity and budget fits.
        """
        limit = self.capacity_tokens + 1
        if self.max_model_len is not None:
            limit = min(limit, self.max_model_len)
        if not self.enable_chunked_prefill:
            limit = min(limit, self.max_num_batched_tokens + 1)
        return limit


_WORKER_TYPES = {"agg": WorkerType.Aggregated, "prefill": WorkerType.Prefill, "decode": WorkerType.Decode}
_ALIASES = {"num_gpu_blocks_override": "num_gpu_blocks", "data_parallel_size": "dp_size"}
_FINITE = (
    "speedup_ratio",
    "decode_speedup_ratio",
    "startup_time",
    "kv_transfer_bandwidth",
    "bandwidth_g1_to_g2_gbps",
    "bandwidth_g2_to_g1_gbps",
    "bandwidth_g2_to_g3_gbps",
    "bandwidth_g3_to_g2_gbps",
)
_UPSTREAM_ONLY = frozenset(
    {
        "bandwidth_g2_to_g4_gbps",
        "bandwidth_g4_to_g2_gbps",
        "bootstrap_port",
        "bootstrap_ports",
        "enable_g4_storage",
        "enable_local_indexer",
        "g1_backend",
        "handoff_session_timeout_ms",
        "kv_cache_dtype",
        "offload_batch_size",
        "response_replay_trace_path",
        "zmq_kv_events_port",
        "zmq_kv_events_ports",
        "zmq_replay_port",
        "zmq_replay_ports",
    }
)


def _mapping(source: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(source, Mapping):
        values = dict(source)
        wrong = next((key for key in values if not isinstance(key, str)), None)
        if wrong is not None:
            raise InvalidArgument(f"mocker argument names must be strings, not {wrong!r}")
        return values
    try:
        decoded = msgspec.json.decode(source)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidArgument(f"mocker arguments are not valid JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise InvalidArgument(f"mocker arguments must be a JSON object, not {type(decoded).__name__}")
    return decoded


def _read_roles(values: dict[str, Any]) -> None:
    """The older spelling of `disaggregation_mode`: two booleans."""
    roles = {role: values.pop(f"is_{role}", False) for role in ("prefill", "decode")}
    for role, flag in roles.items():
        if not isinstance(flag, bool):
            raise InvalidArgument(f"mocker argument 'is_{role}': expected `bool`, got `{type(flag).__name__}`")
    if all(roles.values()):
        raise InvalidArgument("mocker arguments 'is_prefill' and 'is_decode' exclude each other")
    for role, flag in roles.items():
        if flag:
            if values.get("disaggregation_mode", role) != role:
                raise InvalidArgument(f"mocker argument 'is_{role}' contradicts 'disaggregation_mode'")
            values["disaggregation_mode"] = role


def _named(message: str) -> str:
    """msgspec's "Expected `int` >= 1 - at `$.block_size`" with the argument's name first."""
    reason, found, path = message.partition(" - at `$.")
    if not found:
        return f": {reason}"
    return f"'{path.rstrip('`')}': {reason[0].lower()}{reason[1:]}"
