"""Pure functions that turn an engine request into the arguments of `Engine.async_generate`.

SGLang itself checks the values, against the model and against each other.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dynamo.engines.request_options import choice_seed, end_ids, guide, reject_search
from dynamo.engines.sglang.handoff import bootstrap_arguments
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument

_AS_THEY_ARE = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_GUIDES = {"json_schema": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}


class SamplingLimits(Struct, frozen=True):
    """What one engine takes: the rest it refuses, or would die of."""

    ranks: int = 1
    guided: bool = True
    """It was started with a grammar backend."""
    salts: bool = True
    """Its version has `cache_salt`."""
    seeded: bool = False
    """Its inference is deterministic: every request has a seed, given or not."""
    vocabulary: int = 1 << 32
    tags: dict[str, bool] = {}
    """What its xgrammar can do with tool calls."""


_NO_LIMITS = SamplingLimits()


def generate_arguments(request: PreprocessedRequest, rid: str, limits: SamplingLimits = _NO_LIMITS) -> dict[str, Any]:
    """Raises InvalidArgument for what SGLang cannot do."""
    shown, routing = request.output_options, request.routing
    ids = _token_ids(request.token_ids, limits.vocabulary)
    arguments: dict[str, Any] = {
        "input_ids": ids,
        "sampling_params": sampling_params(request, limits),
        "stream": True,
        "rid": rid,
        **bootstrap_arguments(request.bootstrap_info),
    }
    if shown.logprobs is not None or shown.prompt_logprobs is not None:
        likeliest = max(shown.logprobs or 0, shown.prompt_logprobs or 0)
        if likeliest > limits.vocabulary:  # its scheduler would die of it
            raise InvalidArgument(f"logprobs: the model has only {limits.vocabulary} tokens")
        arguments |= {
            "return_logprob": True,
            "top_logprobs_num": likeliest,
            "logprob_start_len": -1 if shown.prompt_logprobs is None else 0,
        }
    if routing is not None:
        if routing.lora_name:
            raise InvalidArgument(f"this worker has no adapter '{routing.lora_name}'")
        if routing.priority is not None:
            arguments["priority"] = routing.priority
        if routing.cache_salt:
            if not limits.salts:
                raise InvalidArgument("this version of SGLang has no cache_salt")
            arguments["cache_salt"] = routing.cache_salt
        if routing.dp_rank is not None and limits.ranks > 1:
            arguments["routed_dp_rank"] = routing.dp_rank
    return arguments


def sampling_params(request: PreprocessedRequest, limits: SamplingLimits = _NO_LIMITS) -> dict[str, Any]:
    sampling, stops = request.sampling_options, request.stop_conditions
    reject_search("SGLang", request)
    if limits.seeded and sampling.min_p:  # an assertion of its sampler would end the engine
        raise InvalidArgument("SGLang does not support min_p with --enable-deterministic-inference")
    params: dict[str, Any] = {name: value for name in _AS_THEY_ARE if (value := getattr(sampling, name)) is not None}
    params["max_new_tokens"] = stops.max_tokens  # None: to the end of the context; left out, it would be 128
    if sampling.top_k is not None:
        params["top_k"] = sampling.top_k or -1  # 0 means all tokens for the client, -1 for SGLang
    if (seed := choice_seed(request, low=-(1 << 63), high=1 << 63)) is not None:
        params["sampling_seed"] = seed
    elif limits.seeded:  # otherwise all requests have the same one, and all choices of a request are equal
        params["sampling_seed"] = random.getrandbits(31)
    if sampling.logit_bias:
        params["logit_bias"] = sampling.logit_bias
    if stops.min_tokens:
        params["min_new_tokens"] = stops.min_tokens
    if stops.ignore_eos:
        params["ignore_eos"] = True
    if ends := end_ids(request):
        params["stop_token_ids"] = ends
    if (wanted := guide("SGLang", sampling.guided_decoding, **limits.tags)) is not None:
        if not limits.guided:
            started = "the worker was started with --grammar-backend none or --skip-tokenizer-init"
            raise InvalidArgument(f"guided decoding is off: {started}")
        params |= {name: text for form, name in _GUIDES.items() if (text := getattr(wanted, form)) is not None}
    return params


def _token_ids(ids: Sequence[int], vocabulary: int) -> list[int]:
    """SGLang does not check ids: one that is not in the vocabulary ends a GPU engine."""
    try:
        packed = ids if isinstance(ids, array) else array("I", ids)
    except (OverflowError, TypeError):
        raise InvalidArgument("token ids must be integers from 0 to 4294967295") from None
    if packed and max(packed) >= vocabulary:
        raise InvalidArgument(f"token id {max(packed)} is not in the model's vocabulary")
    return packed.tolist()
