"""How workers are chosen. `dynamo.router` has the behaviour."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from dynamo.settings.setting import Setting
from dynamo.settings.table import Settings

HandoffPolicyName = Literal["measured", "isl_bounding", "prefill_load", "isl_or_load", "always", "never"]


class HandoffConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy. All but `measured`, `always` and `never` are ai-dynamo's, with its thresholds."""

    policy: HandoffPolicyName = "measured"
    eff_isl_threshold: Annotated[int, Meta(ge=0)] = 2048
    eff_isl_ratio_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7
    prefill_busy_threshold: Annotated[float, Meta(ge=0)] | None = None
    """Batches of prompt tokens waiting at the prefill worker."""
    decode_busy_threshold: Annotated[float, Meta(ge=0)] | None = None
    """Batches of prompt tokens waiting at the decode worker: above it, the prompt is not computed there."""

    @classmethod
    def from_json(cls, text: str) -> HandoffConfig:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"a JSON object with policy and thresholds ({error})") from None


Seconds = Meta(ge=0, lt=1e9)
AffinityMode = Literal["soft", "hard"]
QueuePolicy = Literal["fcfs", "wspt"]
POLICIES = {
    "round-robin": "dynamo.router.policy:RoundRobin",
    "random": "dynamo.router.policy:Random",
    "least-loaded": "dynamo.router.policy:LeastLoaded",
    "power-of-two": "dynamo.router.policy:PowerOfTwo",
    "direct": "dynamo.router.policy:Direct",
}
"""The classes of the simple policies, by router mode. A router imports the one it uses."""
MODES = (*POLICIES, "kv")


class RouterSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "router"

    # fmt: off
    mode: Annotated[str, Setting(
        "--router-mode", "DYN_ROUTER_MODE", "how to choose a worker", "MODE", choices=MODES)] = "round-robin"
    rule: Annotated[str | None, Setting(
        "--router-rule", "DYN_ROUTER_RULE",
        "kv: a file with the rule that chooses instead of the built-in one, read again when it changes; or a name",
        "FILE.py|NAME", default="built in")] = None
    overlap_weight: Annotated[float, Meta(ge=0), Setting(
        "--kv-overlap-score-weight",
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_KV_OVERLAP_SCORE_WEIGHT"),
        "weight of a cached prefix; 0 routes by load alone",
        aliases=("--router-kv-overlap-score-credit", "--router-kv-overlap-score-weight"))] = 1.0
    temperature: Annotated[float, Meta(ge=0), Setting(
        "--router-temperature", "DYN_ROUTER_TEMPERATURE", "0 takes the cheapest worker, more spreads requests")] = 0.0
    host_weight: Annotated[float, Meta(ge=0, le=1), Setting(
        "--router-host-cache-hit-weight", "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",
        "worth of a block in host memory, 0..1 of one on the GPU, where a worker has not measured it")] = 0.75
    disk_weight: Annotated[float, Meta(ge=0, le=1), Setting(
        "--router-disk-cache-hit-weight", "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",
        "worth of a block on disk, 0..1 of one on the GPU, where a worker has not measured it")] = 0.25
    use_kv_events: Annotated[bool, Setting(
        "--use-kv-events", ("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"),
        "follow workers' caches by events; false: estimate", aliases=("--router-kv-events", "--kv-events"))] = True
    ttl: Annotated[float, Meta(gt=0, lt=1e9), Setting(
        "--router-ttl-secs", "DYN_ROUTER_TTL_SECS", "without events: how long a prompt is assumed to stay cached",
        "SECONDS")] = 120.0
    replica_sync: Annotated[bool, Setting(
        "--router-replica-sync", "DYN_ROUTER_REPLICA_SYNC", "share bookings with the other frontends")] = False
    copy_prefixes: Annotated[bool, Setting(
        "--router-copy-prefixes", "DYN_ROUTER_COPY_PREFIXES",
        "kv with events: idle workers compute prefixes ahead that many running requests share")] = True
    session_affinity_ttl_secs: Annotated[int | None, Meta(ge=1, le=31_536_000), Setting(
        "--router-session-affinity-ttl-secs", "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",
        "a session that its client names keeps to its worker until it has been idle for so long", "SECONDS",
        default="off")] = None
    session_affinity_mode: Annotated[AffinityMode, Setting(
        "--router-session-affinity-mode", "DYN_ROUTER_SESSION_AFFINITY_MODE",
        "soft: a worker with too much to do loses the session; hard: only one that has left does", "MODE")] = "soft"
    keep_paused: Annotated[bool, Setting(
        "--router-keep-paused", "DYN_ROUTER_KEEP_PAUSED",
        "kv: learn how long sessions pause; mockers keep the blocks of those that return soonest")] = False
    active_decode_blocks_threshold: Annotated[float | None, Meta(ge=0, le=1), Setting(
        "--active-decode-blocks-threshold", "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",
        "a worker is busy above this share of its blocks in use, 0..1")] = None
    active_prefill_tokens_threshold: Annotated[int | None, Meta(ge=0), Setting(
        "--active-prefill-tokens-threshold", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
        "a worker is busy above this number of waiting prompt tokens")] = None
    active_prefill_tokens_threshold_frac: Annotated[float | None, Meta(ge=0), Setting(
        "--active-prefill-tokens-threshold-frac", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
        "the same, as a multiple of the worker's max_num_batched_tokens")] = None
    queue_threshold: Annotated[float | None, Meta(ge=0), Setting(
        "--router-queue-threshold", "DYN_ROUTER_QUEUE_THRESHOLD",
        "kv: requests wait in the router while every worker has more batches of prompt tokens waiting")] = None
    queue_policy: Annotated[QueuePolicy, Setting(
        "--router-queue-policy", "DYN_ROUTER_QUEUE_POLICY",
        "order within a priority, first come or shortest weighted prompt first", "POLICY")] = "fcfs"
    queue_limit: Annotated[int, Meta(ge=1), Setting(
        "--router-queue-limit", "DYN_ROUTER_QUEUE_LIMIT",
        "requests that may wait in the router per worker; further ones are refused")] = 256
    stream_stall_secs: Annotated[float, Seconds, Setting(
        "--stream-stall-secs", "DYN_STREAM_STALL_SECS",
        "a stream without a token for so long moves to another worker, or fails; 0 waits for ever", "SECONDS")] = 30.0
    first_token_stall_secs: Annotated[float, Seconds, Setting(
        "--first-token-stall-secs", "DYN_FIRST_TOKEN_STALL_SECS",
        "the same until the first token, while the worker sends no other request a token; 20 ms more per prompt token",
        "SECONDS")] = 120.0
    migration_wait_secs: Annotated[float, Seconds, Setting(
        "--migration-wait-secs", "DYN_MIGRATION_WAIT_SECS",
        "how long a request that may move waits for a worker when it can reach none", "SECONDS")] = 30.0
    conditional_disagg: Annotated[bool, Setting(
        "--router-conditional-disagg", "DYN_ROUTER_CONDITIONAL_DISAGG",
        "split by the thresholds of --router-conditional-disagg-config instead of by measured times")] = False
    conditional_disagg_config: Annotated[HandoffConfig | None, Setting(
        "--router-conditional-disagg-config", "DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG",
        "when a prefill worker computes the prompt: policy, eff_isl_threshold and so on", "JSON",
        default="measured times decide", parse=HandoffConfig.from_json)] = None
    # fmt: on
