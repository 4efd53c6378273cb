"""Pure functions that turn an engine request into the arguments of `Engine.async_generate`.

SGLang itself checks the values, against the model and against each other.
"""

from __future__ import annotations

from array import array
from typing import Any

from dynamo.engines.request_options import choice_seed, end_ids, guide, reject_search
from dynamo.engines.sglang.handoff import bootstrap_arguments
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument

_AS_THEY_ARE = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_GUIDES = {"json_schema": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}


def generate_arguments(
    request: PreprocessedRequest, rid: str, *, ranks: int = 1, guided: bool = True
) -> dict[str, Any]:
    """Raises InvalidArgument for what SGLang cannot do; `guided`: it was started with a grammar backend."""
    shown, routing = request.output_options, request.routing
    ids = request.token_ids
    arguments: dict[str, Any] = {
        "input_ids": ids.tolist() if isinstance(ids, array) else list(ids),
        "sampling_params": sampling_params(request, guided=guided),
        "stream": True,
        "rid": rid,
        **bootstrap_arguments(request.bootstrap_info),
    }
    if shown.logprobs is not None or shown.prompt_logprobs is not None:
        arguments |= {
            "return_logprob": True,
            "top_logprobs_num": max(shown.logprobs or 0, shown.prompt_logprobs or 0),
            "logprob_start_len": -1 if shown.prompt_logprobs is None else 0,
        }
    if routing is not None:
        if routing.lora_name:
            raise InvalidArgument(f"this worker has no adapter '{routing.lora_name}'")
        if routing.priority is not None:
            arguments["priority"] = routing.priority
        if routing.cache_salt:
            arguments["cache_salt"] = routing.cache_salt
        if routing.dp_rank is not None and ranks > 1:
            arguments["routed_dp_rank"] = routing.dp_rank
    return arguments


def sampling_params(request: PreprocessedRequest, *, guided: bool = True) -> dict[str, Any]:
    sampling, stops = request.sampling_options, request.stop_conditions
    reject_search("SGLang", request)
    params: dict[str, Any] = {name: value for name in _AS_THEY_ARE if (value := getattr(sampling, name)) is not None}
    params["max_new_tokens"] = stops.max_tokens  # None: to the end of the context; left out, it would be 128
    if sampling.top_k is not None:
        params["top_k"] = sampling.top_k or -1  # 0 means all tokens for the client, -1 for SGLang
    if (seed := choice_seed(request, low=-(1 << 63), high=1 << 63)) is not None:
        params["sampling_seed"] = seed
    if sampling.logit_bias:
        params["logit_bias"] = sampling.logit_bias
    if stops.min_tokens:
        params["min_new_tokens"] = stops.min_tokens
    if stops.ignore_eos:
        params["ignore_eos"] = True
    if ends := end_ids(request):
        params["stop_token_ids"] = ends
    if (wanted := guide("SGLang", sampling.guided_decoding)) is not None:
        if not guided:
            raise InvalidArgument("guided decoding needs a worker started with --grammar-backend")
        params |= {name: text for form, name in _GUIDES.items() if (text := getattr(wanted, form)) is not None}
    return params
