"""Pure functions that turn an engine request into mistral.rs's parameters, and reject what it does not support."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from dynamo.engines.guided_schema import choice_regex, json_grammar, json_schema, tool_calls
from dynamo.engines.mistralrs.vocabulary import Vocabulary
from dynamo.engines.request_options import reject_options
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions
from dynamo.protocols.errors import InvalidArgument

_LACKS = ("use_beam_search", "best_of", "prompt_logprobs", "a LoRA adapter", "kv_transfer_params")

# Added to a logit, it prevents a token from being sampled; infinity would become NaN in a penalty.
_NEVER = -1e9

# mistral.rs treats 1 as unset.
_HIGHEST_MIN_P = 1 - 1e-6


class Plan(Struct, frozen=True):
    """How one request is run."""

    prompt: list[int]
    ends: frozenset[int]
    """Ids that end the answer; with `ignore_eos` only those that the client named."""
    stop_ids: frozenset[int]
    """Ids among them that the client named."""
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    logprobs: int | None
    parameters: dict[str, Any]
    """The keyword arguments for mistral.rs that are the same for the whole answer."""
    bias: dict[int, float]
    resumed: list[int]
    """The end of the prompt: what another worker generated of this guided answer."""

    def request(self, vocabulary: Vocabulary, generated: list[int], limit: int, *, may_end: bool) -> dict[str, Any]:
        """The keyword arguments for up to `limit` tokens after the prompt and the tokens generated so far."""
        bias = self.bias if may_end else self.bias | dict.fromkeys(vocabulary.ends, _NEVER)
        return {
            **self.parameters,
            "messages": [{"role": "user", "content": vocabulary.prompt(self.prompt + generated)}],
            "max_tokens": limit,
            "logit_bias": bias or None,
            "stop_seqs": list(vocabulary.ends.values()) if may_end and vocabulary.ends else None,
            "ignore_eos": not may_end,
        }

    def next_token(self, vocabulary: Vocabulary, generated: list[int], banned: Iterable[int]) -> dict[str, Any]:
        """The keyword arguments for one token, by the grammar that bans these ids rather than by mistral.rs's own."""
        parameters = self.request(vocabulary, generated, 1, may_end=True)
        parameters["logit_bias"] = self.bias | dict.fromkeys(banned, _NEVER)
        return {key: value for key, value in parameters.items() if key not in ("grammar", "grammar_type")}


def plan(request: PreprocessedRequest, vocabulary: Vocabulary, context_length: int) -> Plan:
    """Raises InvalidArgument for unsupported options and for a prompt that does not fit into the context."""
    sampling, stops = request.sampling_options, request.stop_conditions
    reject_options("mistralrs", request, *_LACKS)
    if not request.token_ids:
        raise InvalidArgument("the prompt is empty")
    room = context_length - len(request.token_ids)
    if room < 1:
        raise InvalidArgument(
            f"the prompt has {len(request.token_ids)} tokens, which leaves no room in a context of {context_length}"
        )
    max_tokens = room if stops.max_tokens is None else min(room, stops.max_tokens)
    if max_tokens < 1:
        raise InvalidArgument(f"max_tokens must be at least 1, not {stops.max_tokens}")
    grammar = guided(sampling.guided_decoding)
    bias = _bias(sampling.logit_bias)
    if grammar:
        if vocabulary.grammar_end is None:
            raise InvalidArgument("guided_decoding: this model's vocabulary has no end token that mistralrs knows")
        if stops.min_tokens or stops.ignore_eos:
            option = "min_tokens" if stops.min_tokens else "ignore_eos"
            raise InvalidArgument(f"mistralrs cannot combine {option} with guided decoding")
        bias = dict.fromkeys(vocabulary.markers, _NEVER) | bias
    stop_ids = frozenset(stops.stop_token_ids or ())
    ends = stop_ids.union(stops.stop_token_ids_hidden or (), request.eos_token_ids)
    logprobs = request.output_options.logprobs
    return Plan(
        prompt=list(request.token_ids),
        ends=stop_ids if stops.ignore_eos else ends,
        stop_ids=stop_ids,
        max_tokens=max_tokens,
        min_tokens=min(stops.min_tokens or 0, max_tokens),
        ignore_eos=bool(stops.ignore_eos),
        logprobs=logprobs,
        parameters={
            "model": "",
            "stream": True,
            "logprobs": True,
            "top_logprobs": logprobs or None,
            **_sampling(sampling),
            **grammar,
        },
        bias=bias,
        resumed=list(request.token_ids[-request.resumed_tokens :]) if grammar and request.resumed_tokens else [],
    )


def guided(guidance: dict[str, Any] | None) -> dict[str, str]:
    """`guided_decoding` as mistral.rs's `grammar` and `grammar_type`; empty without guidance."""
    if not guidance:
        return {}
    if guidance.get("whitespace_pattern") is not None:
        raise InvalidArgument("mistralrs cannot follow guided_whitespace_pattern")
    match guidance:
        case {"tool_calls": calls} if calls is not None:
            return {"grammar": tool_calls(calls).grammar(), "grammar_type": "lark"}
        case {"json": schema} if schema is not None:
            return {"grammar": json_grammar(json_schema(schema)), "grammar_type": "json_schema"}
        case {"regex": str() as regex}:
            return {"grammar": regex, "grammar_type": "regex"}
        case {"choice": [str(), *_] as choices} if all(isinstance(each, str) for each in choices):
            return {"grammar": choice_regex(choices), "grammar_type": "regex"}
        case {"grammar": str() as grammar}:
            return {"grammar": grammar, "grammar_type": "lark"}
    raise InvalidArgument(f"mistralrs cannot follow guided_decoding with {', '.join(map(str, guidance)) or 'nothing'}")


def _sampling(options: SamplingOptions) -> dict[str, Any]:
    return {
        "temperature": 1.0 if options.temperature is None else options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k if options.top_k and options.top_k > 0 else None,
        "min_p": None if options.min_p is None else min(options.min_p, _HIGHEST_MIN_P),
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "repetition_penalty": options.repetition_penalty,
    }


def _bias(logit_bias: dict[str, float] | None) -> dict[int, float]:
    try:
        bias = {int(id): float(value) for id, value in (logit_bias or {}).items()}
    except (TypeError, ValueError):
        raise InvalidArgument("logit_bias: keys must be token ids and values numbers") from None
    if any(id < 0 or id >= 1 << 32 or not math.isfinite(value) for id, value in bias.items()):
        raise InvalidArgument("logit_bias: keys must be token ids and values numbers")
    return bias
