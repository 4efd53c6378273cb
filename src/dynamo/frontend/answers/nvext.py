"""NVIDIA's extensions of the OpenAI API: what headers add to a request, and what is told beside an answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from dynamo.pipeline.preprocess import Prepared
from dynamo.protocols.openai_fields import AgentHints, NvExt
from dynamo.router.decision import Decision
from dynamo.serving.generation import Generation

_INSTANCE = ("x-dynamo-worker-instance-id", "x-worker-instance-id")
_RANK = ("x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank")
_PRIORITY = ("x-dynamo-request-priority",)
_TENANT = "x-tenant-id"
UNSET_RANK = 4294967295
_NAMES = frozenset((*_INSTANCE, *_RANK, *_PRIORITY, _TENANT))


def with_headers(nvext: NvExt | None, headers: Mapping[str, str]) -> NvExt | None:
    """Headers come before the body; one that makes no sense is as good as none."""
    if _NAMES.isdisjoint(map(str.lower, headers)):
        return nvext
    said: dict[str, Any] = {
        "backend_instance_id": _number(headers, _INSTANCE, 0, 2**64 - 1),
        "dp_rank": _number(headers, _RANK, 0, UNSET_RANK - 1),
        "cache_salt": headers.get(_TENANT) or None,
    }
    said = {name: value for name, value in said.items() if value is not None}
    priority = _number(headers, _PRIORITY, -(2**31), 2**31 - 1)
    if not said and priority is None:
        return nvext
    nvext = nvext or NvExt()
    if priority is not None:
        said["agent_hints"] = structs.replace(nvext.agent_hints or AgentHints(), priority=priority)
    return structs.replace(nvext, **said)


def _number(headers: Mapping[str, str], names: Sequence[str], low: int, high: int) -> int | None:
    for name in names:
        text = headers.get(name, "")
        if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
    return None


def annotation_events(nvext: NvExt | None, request_id: str, prepared: Prepared | None = None) -> bytes:
    """Events that stand before a stream: named as asked for, the value in a comment, so that clients skip them."""
    if nvext is None or not nvext.annotations:
        return b""
    told: dict[str, str] = {"request_id": request_id}
    if prepared is not None:
        if prepared.prompt is not None:
            told["formatted_prompt"] = prepared.prompt
        told["token_ids"] = msgspec.json.encode([*prepared.request.token_ids]).decode()
    asked = dict.fromkeys(nvext.annotations)
    return b"".join(
        b"event: %b\n: %b\n\n" % (name.encode(), msgspec.json.encode(told[name])) for name in asked if name in told
    )


class Extras:
    """The `nvext` of an answer: what the client asked to be told about its request."""

    def __init__(self, nvext: NvExt | None, generation: Generation) -> None:
        self._fields = frozenset((nvext and nvext.extra_fields) or ())
        self._generation = generation
        self._received = time.time()

    def tell(self, stop_reason: str | int | None) -> dict[str, Any] | None:
        """To be asked when the answer is complete; None where nothing was asked for."""
        if not self._fields:
            return None
        told: dict[str, Any] = {}
        decisions = self._generation.decisions
        if "worker_id" in self._fields and decisions:
            told["worker_id"] = _worker(decisions[0])
        if "routing" in self._fields:
            told["routing"] = [decision.reasons() for decision in decisions]
        if "timing" in self._fields:
            told["timing"] = self._timing()
        if "stop_reason" in self._fields:
            told["stop_reason"] = stop_reason
        return told

    def _timing(self) -> dict[str, float]:
        timing = {
            "request_received_ms": self._received * 1000,
            "total_time_ms": (time.time() - self._received) * 1000,
        }
        first = self._generation.first_output_time
        if first is not None:
            timing["ttft_ms"] = max(0.0, first - self._received) * 1000
        hit_rate = next((decision.hit_rate for decision in self._generation.decisions), None)
        if hit_rate is not None:
            timing["kv_hit_rate"] = hit_rate
        return timing


def _worker(decision: Decision) -> dict[str, int]:
    """One worker computes the prompt and the answer; its rank is told where the router chose it."""
    told = {"prefill_worker_id": decision.worker_id, "decode_worker_id": decision.worker_id}
    if decision.dp_rank is not None:
        told |= {"prefill_dp_rank": decision.dp_rank, "decode_dp_rank": decision.dp_rank}
    return told
