"""The hand-off of computed prompts between two vLLM engines, as `kv_transfer_params` ask for it.

The prefill engine is asked to hold the blocks of a prompt. Its answer says where they are; the decode engine gets that
as it is, fetches the blocks and frees them at the prefill engine. What it cannot fetch it computes. Blocks that no
engine fetches are freed by the connector after its `kv_lease_duration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import ProtocolError

PARAMS = "kv_transfer_params"
"""The key in `disaggregated_params`, by ai-dynamo's name."""


def connectors(config: Any) -> list[str]:
    """The connector, or those inside a MultiConnector."""
    if config.kv_connector != "MultiConnector":
        return [str(config.kv_connector)]
    return [str(each.get("kv_connector")) for each in config.kv_connector_extra_config.get("connectors", [])]


def transfer_form(config: Any, version: str) -> str:
    """What must be equal on both sides: the connector, its version, and the shape of the KV cache."""
    model, cache = config.model_config, config.cache_config
    dtype = str(model.dtype).removeprefix("torch.") if cache.cache_dtype == "auto" else cache.cache_dtype
    names = "+".join(connectors(config.kv_transfer_config))
    shape = f"{model.get_total_num_hidden_layers()}x{model.get_total_num_kv_heads()}x{model.get_head_size()}"
    return f"{names} of vLLM {'.'.join(version.split('.')[:2])}, KV {shape} in {dtype}"


def prefilling(request: PreprocessedRequest) -> PreprocessedRequest:
    asked: dict[str, Any] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    return structs.replace(request, kv_transfer_params={**asked, **(request.kv_transfer_params or {})})


def offered(params: dict[str, Any] | None) -> dict[str, Any] | None:
    """`disaggregated_params` of an output whose blocks are held for another engine."""
    return {PARAMS: params} if params else None


def continuing(request: PreprocessedRequest) -> PreprocessedRequest:
    found = request.prefill_result.disaggregated_params.get(PARAMS) if request.prefill_result else None
    if not isinstance(found, Mapping):
        raise ProtocolError(f"the prefill worker's answer has no {PARAMS}")
    if request.output_options.prompt_logprobs is not None:
        raise ProtocolError("vLLM scores only prompts that it computes itself")
    return structs.replace(request, kv_transfer_params=dict(found))


def cached_before(request: PreprocessedRequest) -> int | None:
    """Tokens of a fetched prompt that the prefill engine had cached; for vLLM all that it fetched are cached."""
    details = request.prefill_result.prompt_tokens_details if request.prefill_result else None
    found = (details or {}).get("cached_tokens")
    return found if isinstance(found, int) else None
