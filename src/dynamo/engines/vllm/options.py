"""Pure functions that turn an engine request into vLLM's sampling parameters, and reject what vLLM cannot do.

vLLM itself checks the values, against the model and against each other.
"""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from xgrammar import structural_tag

from dynamo.engines.request_options import choice_seed, end_ids, guide, reject_search
from dynamo.engines.vllm.grammars import resumed
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument

_AS_THEY_ARE = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_MOST_BIAS = 100.0
_TAGS = {
    "counts": hasattr(structural_tag, "RepeatFormat"),
    "short_whitespace": "max_whitespace_cnt" in structural_tag.JSONSchemaFormat.model_fields,
}
"""What the installed xgrammar can do."""
SALT_PREFIX = "dynamo-cache-salt:"
"""Readers of KV events recognise a salt by it."""


def sampling_params(request: PreprocessedRequest, *, thinks: bool = False) -> SamplingParams:
    """Raises InvalidArgument, or an error of vLLM's. `thinks`: the engine can limit a model's reasoning."""
    sampling, stops, shown = request.sampling_options, request.stop_conditions, request.output_options
    reject_search("vLLM", request)
    guided = structured_outputs(sampling.guided_decoding)
    extra: dict[str, Any] = resumed(request.resumed_tokens) if guided else {}
    if request.kv_transfer_params:
        extra["kv_transfer_params"] = request.kv_transfer_params
    budget = {"thinking_token_budget": stops.max_thinking_tokens} if thinks and stops.max_thinking_tokens else {}
    return SamplingParams(
        **{name: value for name in _AS_THEY_ARE if (value := getattr(sampling, name)) is not None},
        **budget,
        seed=choice_seed(request, low=-(1 << 63), high=1 << 63),
        logit_bias=_bias(sampling.logit_bias),
        max_tokens=stops.max_tokens,
        min_tokens=stops.min_tokens or 0,
        ignore_eos=bool(stops.ignore_eos),
        stop_token_ids=end_ids(request),
        logprobs=shown.logprobs,
        prompt_logprobs=shown.prompt_logprobs,
        structured_outputs=guided,
        extra_args=extra or None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def structured_outputs(guidance: dict[str, Any] | None) -> StructuredOutputsParams | None:
    """`guided_decoding` as vLLM's constraint. The backend is chosen for the whole engine, by its flags."""
    wanted = guide("vLLM", guidance, **_TAGS)
    if wanted is None or guidance is None:
        return None
    return StructuredOutputsParams(
        json=wanted.json_schema,
        regex=wanted.regex,
        grammar=wanted.grammar,
        structural_tag=wanted.structural_tag,
        whitespace_pattern=guidance.get("whitespace_pattern") if wanted.json_schema else None,
    )


def _bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    try:
        return {int(token): max(-_MOST_BIAS, min(_MOST_BIAS, float(value))) for token, value in bias.items()}
    except (TypeError, ValueError):
        raise InvalidArgument("logit_bias: keys must be token ids and values numbers") from None
