"""Guided answers that another worker began: the grammar takes in what the client already has.

vLLM compiles a grammar in the process of its engine, and begins there with the first token that it samples.
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from vllm.v1.structured_output import StructuredOutputManager

_RESUMED = "dynamo_resumed_tokens"
_PLUGIN = "dynamo.engines.vllm.plugin:prepare_process"
_COMPILE = "_create_grammar"


def resumed(count: int) -> dict[str, int]:
    """The extra arguments of a request whose last `count` prompt tokens are part of the answer."""
    return {_RESUMED: count} if count else {}


def resume_grammars() -> None:
    """To be called in the process of the engine, before its first request."""
    compiles = getattr(StructuredOutputManager, _COMPILE, None)
    if compiles is None or hasattr(compiles, "__wrapped__"):
        return

    def compiled(manager: Any, request: Any) -> Any:
        grammar = compiles(manager, request)
        count = (request.sampling_params.extra_args or {}).get(_RESUMED, 0)
        if count and not grammar.accept_tokens(request.request_id, list(request.prompt_token_ids[-count:])):
            raise ValueError("the answer so far does not fit its grammar")
        return grammar

    compiled.__wrapped__ = compiles  # type: ignore[attr-defined]
    setattr(StructuredOutputManager, _COMPILE, compiled)


def are_resumed(config: Any) -> bool:
    """Whether the engine's process does so: it has this package as a plugin, and vLLM is as it was tested."""
    if config.structured_outputs_config.reasoning_parser:
        return False  # vLLM's grammar then begins somewhere inside the answer
    allowed = os.environ.get("VLLM_PLUGINS")
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    loaded = any(each.value == _PLUGIN and (allowed is None or each.name in allowed.split(",")) for each in plugins)
    return loaded and hasattr(StructuredOutputManager, _COMPILE)
