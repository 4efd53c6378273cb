"""Pure functions that turn an engine request into TensorRT-LLM's sampling parameters, and reject what it cannot do."""

from __future__ import annotations

from typing import Any

from tensorrt_llm import SamplingParams
from tensorrt_llm.llmapi import GuidedDecodingParams

from dynamo.engines.request_options import choice_seed, end_ids, guide, reject_search
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument

_NAME = "TensorRT-LLM"
_AS_THEY_ARE = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_NO_END = -1


def sampling_params(request: PreprocessedRequest, *, context: int | None, guided: bool) -> Any:
    """Raises InvalidArgument. `context`: how long prompt and answer may be; `guided`: grammars can be followed."""
    sampling, stops, shown = request.sampling_options, request.stop_conditions, request.output_options
    reject_search(_NAME, request)
    if sampling.logit_bias:
        raise InvalidArgument(f"{_NAME} does not support logit_bias here")
    if shown.prompt_logprobs is not None:
        raise InvalidArgument(f"{_NAME} does not support prompt_logprobs here")
    ends = end_ids(request)
    end_id = ends[0] if ends and not stops.ignore_eos else _NO_END
    params: dict[str, Any] = {name: value for name in _AS_THEY_ARE if (value := getattr(sampling, name)) is not None}
    return SamplingParams(
        **params,
        **_randomness(request),
        max_tokens=_most(request, context),
        min_tokens=stops.min_tokens,
        # Without an end_id it would ask its tokenizer, which is not loaded.
        end_id=end_id,
        pad_id=max(0, end_id),
        stop_token_ids=[id for id in ends if id != end_id] or None,
        ignore_eos=bool(stops.ignore_eos),
        seed=choice_seed(request, low=0, high=1 << 64),
        logprobs=None if shown.logprobs is None else max(1, shown.logprobs),
        guided_decoding=_guided(sampling.guided_decoding, guided),
        detokenize=False,
    )


def _randomness(request: PreprocessedRequest) -> dict[str, Any]:
    """TensorRT-LLM is greedy unless told otherwise, and may reject a temperature of 0."""
    sampling = request.sampling_options
    if sampling.temperature is not None and sampling.temperature <= 0:
        return {"top_k": 1}
    top_k = {} if sampling.top_k is None else {"top_k": max(0, sampling.top_k)}
    return {"temperature": 1.0 if sampling.temperature is None else sampling.temperature, **top_k}


def _most(request: PreprocessedRequest, context: int | None) -> int:
    if (most := request.stop_conditions.max_tokens) is not None:
        return most
    if context is None:
        raise InvalidArgument("max_tokens must be given: this worker does not know the model's context length")
    if (left := context - len(request.token_ids)) < 1:
        raise InvalidArgument(f"a prompt of {len(request.token_ids)} tokens leaves no room in a context of {context}")
    return left


def _guided(guidance: dict[str, Any] | None, guided: bool) -> Any:
    wanted = guide(_NAME, guidance)
    if wanted is None:
        return None
    if not guided:
        raise InvalidArgument("guided decoding needs a worker started with --guided-decoding-backend")
    return GuidedDecodingParams(
        json=wanted.json_schema,
        regex=wanted.regex,
        grammar=wanted.grammar,
        structural_tag=wanted.structural_tag,
    )
