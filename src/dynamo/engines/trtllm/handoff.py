"""The roles of TensorRT-LLM workers: `disaggregated_params` of a context-only request, continued generation-only.

They travel as JSON: bytes, such as `opaque_state`, as base64, by ai-dynamo's names.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from dynamo.engines.base import EngineError
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import ProtocolError

_FLAG = "--disaggregation-mode"
_MODES = {"agg": WorkerType.Aggregated, "prefill": WorkerType.Prefill, "decode": WorkerType.Decode}
_BYTES = "opaque_state"
_CARRIED = (
    "request_type", "first_gen_tokens", "ctx_request_id", "opaque_state", "draft_tokens", "disagg_request_id",
    "ctx_dp_rank", "ctx_info_endpoint",
)  # fmt: skip
"""What the other half needs; not all versions have all of them. The rest are tensors, or handles of one machine."""


def take_role(words: Sequence[str]) -> tuple[WorkerType, list[str]]:
    """The role, and the words that are TensorRT-LLM's own."""
    mode, rest, left = "agg", [], list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != _FLAG:
            rest.append(word)
        else:
            mode = value if equals else left.pop(0) if left else ""
    if mode not in _MODES:
        raise EngineError(f"{_FLAG} must be agg, prefill or decode, not '{mode}'")
    return _MODES[mode], rest


def prefilling(request: PreprocessedRequest) -> PreprocessedRequest:
    return structs.replace(request, kv_transfer_params={"request_type": "context_only"})


def continuing(request: PreprocessedRequest) -> PreprocessedRequest:
    found = request.prefill_result.disaggregated_params if request.prefill_result else {}
    if not isinstance(found.get(_BYTES), str):
        raise ProtocolError(f"the prefill worker's answer has no {_BYTES}")
    from_wire(found)  # what cannot be read is computed here instead
    return structs.replace(request, kv_transfer_params={**found, "request_type": "generation_only"})


def from_wire(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `DisaggregatedParams`. Raises ProtocolError for a state that is not base64."""
    made = dict(params)
    if made.get(_BYTES) is not None:
        try:
            made[_BYTES] = base64.b64decode(made[_BYTES], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ProtocolError(f"the prefill worker's {_BYTES} cannot be read") from None
    return made


def to_wire(params: Any) -> dict[str, Any] | None:
    """`disaggregated_params` of an output; None for one without."""
    if params is None:
        return None
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name in _CARRIED
        if (value := getattr(params, name, None)) is not None
    }


def transfer_form(arguments: Mapping[str, Any]) -> str:
    """What must be equal on both sides."""
    backend = (arguments.get("cache_transceiver_config") or {}).get("backend")
    dtype = arguments["kv_cache_config"].get("dtype", "auto")
    return f"TensorRT-LLM by {backend}, KV in {dtype}"
