"""What engines take of a request, whatever they call it.

An option that an engine lacks is rejected by name: an answer that ignores it is worse than none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dynamo.engines.guided_schema import choice_regex, json_schema, tool_calls, without_control_characters
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument

_ASKED: dict[str, Callable[[PreprocessedRequest], object]] = {
    "use_beam_search": lambda request: request.sampling_options.use_beam_search,
    "best_of": lambda request: (request.sampling_options.best_of or 1) > 1,
    "guided_decoding": lambda request: request.sampling_options.guided_decoding,
    "logprobs": lambda request: request.output_options.logprobs is not None,
    "prompt_logprobs": lambda request: request.output_options.prompt_logprobs is not None,
    "a LoRA adapter": lambda request: request.routing is not None and request.routing.lora_name,
    "kv_transfer_params": lambda request: request.kv_transfer_params,
}


def reject_options(engine: str, request: PreprocessedRequest, *names: str) -> None:
    """Raises InvalidArgument if the request asks for one of these options."""
    for name in names:
        if _ASKED[name](request):
            raise InvalidArgument(f"{engine} does not support {name}")


def reject_search(engine: str, request: PreprocessedRequest) -> None:
    """Raises InvalidArgument for beam search and `best_of`, which need several answers at once."""
    sampling = request.sampling_options
    if sampling.use_beam_search:
        raise InvalidArgument(f"{engine} does not support use_beam_search here")
    if (sampling.best_of or 1) > 1:
        raise InvalidArgument(f"{engine} does not support best_of here")


def end_ids(request: PreprocessedRequest) -> list[int]:
    """Every token id that ends the answer, without repeats; with `ignore_eos` only those that the client named."""
    stops = request.stop_conditions
    own = () if stops.ignore_eos else (*request.eos_token_ids, *(stops.stop_token_ids_hidden or ()))
    return list(dict.fromkeys((*own, *(stops.stop_token_ids or ()))))


def choice_seed(request: PreprocessedRequest, *, low: int, high: int) -> int | None:
    """A seed of its own for each choice of `n`, which would otherwise all be the same."""
    seed = request.sampling_options.seed
    if seed is None:
        return None
    if not low <= seed < high - request.choice:
        raise InvalidArgument(f"seed must be in {low}..{high - 1}, not {seed}")
    return seed + request.choice


class Guide(Struct, frozen=True):
    """`guided_decoding` in the forms that xgrammar and its peers know; exactly one is set."""

    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None
    structural_tag: str | None = None


def guide(engine: str, guidance: dict[str, Any] | None, **tags: bool) -> Guide | None:
    """Raises InvalidArgument for a kind of guidance that is unknown or malformed.

    `tags` is what the engine's xgrammar can do with tool calls: see `Calls.structural_tag`.
    """
    if not guidance:
        return None
    match guidance:
        case {"tool_calls": calls} if calls is not None:
            return Guide(structural_tag=tool_calls(calls).structural_tag(**tags))
        case {"structural_tag": tag} if tag is not None:
            return Guide(structural_tag=_text(tag))
        case {"json": schema} if schema is not None:
            return Guide(json_schema=json.dumps(without_control_characters(json_schema(schema))))
        case {"regex": str() as regex}:
            return Guide(regex=regex)
        case {"choice": [str(), *_] as choices} if all(isinstance(each, str) for each in choices):
            return Guide(regex=choice_regex(choices))
        case {"grammar": str() as grammar}:
            return Guide(grammar=grammar)
    raise InvalidArgument(f"{engine} cannot follow guided_decoding with {', '.join(map(str, guidance))}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
