"""Pure functions that turn an engine request into vLLM's sampling parameters, and reject what vLLM cannot do.

vLLM itself checks the values, against the model and against each other.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from xgrammar import structural_tag

from dynamo.engines.request_options import end_ids
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions
from dynamo.protocols.errors import InvalidArgument

_AS_THEY_ARE = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_MOST_BIAS = 100.0
SALT_PREFIX = "dynamo-cache-salt:"
"""Readers of KV events recognise a salt by it."""


class Calls(Struct, frozen=True):
    """The form in which a model writes tool calls: `json` is the schema of one."""

    json: dict[str, Any]
    begin: str
    end: str
    separator: str
    limit: int

    def structural_tag(self) -> str:
        """From one call to `limit`, for xgrammar; an old one limits neither calls nor whitespace."""
        schema = {"type": "json_schema", "json_schema": self.json, **_short_whitespace()}
        call = {"type": "tag", "begin": self.begin, "content": schema, "end": self.end}
        form: dict[str, Any] = {"type": "tags_with_separator", "tags": [call], "separator": self.separator}
        form |= {"at_least_one": True, "stop_after_first": self.limit == 1}
        if self.limit > 1 and hasattr(structural_tag, "RepeatFormat"):
            separator = {"type": "const_string", "value": self.separator}
            further = {"type": "sequence", "elements": [separator, call] if self.separator else [call]}
            more = {"type": "repeat", "min": 0, "max": self.limit - 1, "content": further}
            form = {"type": "sequence", "elements": [call, more]}
        return json.dumps({"type": "structural_tag", "format": form})


def _short_whitespace() -> dict[str, int]:
    """At most one space or line break between two tokens of JSON: a small model may write any amount."""
    limited = "max_whitespace_cnt" in structural_tag.JSONSchemaFormat.model_fields
    return {"max_whitespace_cnt": 1} if limited else {}


def sampling_params(request: PreprocessedRequest, *, thinks: bool = False) -> SamplingParams:
    """Raises InvalidArgument, or an error of vLLM's. `thinks`: the engine can limit a model's reasoning."""
    sampling, stops, shown = request.sampling_options, request.stop_conditions, request.output_options
    _refuse(request)
    extra = {"kv_transfer_params": request.kv_transfer_params} if request.kv_transfer_params else None
    budget = {"thinking_token_budget": stops.max_thinking_tokens} if thinks and stops.max_thinking_tokens else {}
    return SamplingParams(
        **{name: value for name in _AS_THEY_ARE if (value := getattr(sampling, name)) is not None},
        **budget,
        seed=_seed(sampling, request.choice),
        logit_bias=_bias(sampling.logit_bias),
        max_tokens=stops.max_tokens,
        min_tokens=stops.min_tokens or 0,
        ignore_eos=bool(stops.ignore_eos),
        stop_token_ids=end_ids(request),
        logprobs=shown.logprobs,
        prompt_logprobs=shown.prompt_logprobs,
        structured_outputs=structured_outputs(sampling.guided_decoding),
        extra_args=extra,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def structured_outputs(guidance: dict[str, Any] | None) -> StructuredOutputsParams | None:
    """`guided_decoding` as vLLM's constraint. The backend is chosen for the whole engine, by its flags."""
    if not guidance:
        return None
    pattern = guidance.get("whitespace_pattern")
    match guidance:
        case {"tool_calls": calls} if calls is not None:
            return StructuredOutputsParams(structural_tag=_converted(calls).structural_tag())
        case {"structural_tag": tag} if tag is not None:
            return StructuredOutputsParams(structural_tag=tag if isinstance(tag, str) else json.dumps(tag))
        case {"json": schema} if schema is not None:
            return StructuredOutputsParams(json=schema, whitespace_pattern=pattern)
        case {"regex": str() as regex}:
            return StructuredOutputsParams(regex=regex)
        case {"choice": [str(), *_] as choices} if all(isinstance(each, str) for each in choices):
            return StructuredOutputsParams(choice=choices)
        case {"grammar": str() as grammar}:
            return StructuredOutputsParams(grammar=grammar)
    raise InvalidArgument(f"vLLM cannot follow guided_decoding with {', '.join(map(str, guidance))}")


def _converted(calls: Any) -> Calls:
    try:
        return msgspec.convert(calls, Calls)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"guided_decoding.tool_calls: {error}") from None


def _seed(sampling: SamplingOptions, choice: int) -> int | None:
    """A seed of its own for each choice, as vLLM does for `n`; otherwise they would all be the same."""
    if sampling.seed is None:
        return None
    if not -(1 << 63) <= sampling.seed < (1 << 63) - choice:
        raise InvalidArgument(f"seed must fit into 64 bits, not {sampling.seed}")
    return sampling.seed + choice


def _bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    try:
        return {int(token): max(-_MOST_BIAS, min(_MOST_BIAS, float(value))) for token, value in bias.items()}
    except (TypeError, ValueError):
        raise InvalidArgument("logit_bias: keys must be token ids and values numbers") from None


def _refuse(request: PreprocessedRequest) -> None:
    sampling = request.sampling_options
    if sampling.use_beam_search:
        raise InvalidArgument("vLLM does not support use_beam_search here")
    if (sampling.best_of or 1) > 1:
        raise InvalidArgument("vLLM does not support best_of")
