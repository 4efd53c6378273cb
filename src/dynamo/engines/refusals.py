"""Options of a request that an engine lacks are refused by name: an answer that ignores them is worse than none."""

from __future__ import annotations

from collections.abc import Callable

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


def refuse_options(engine: str, request: PreprocessedRequest, *names: str) -> None:
    """Raises InvalidArgument if the request asks for one of these options."""
    for name in names:
        if _ASKED[name](request):
            raise InvalidArgument(f"{engine} does not support {name}")
