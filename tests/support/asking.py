"""Requests to a token engine with the bundled model, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from dynamo.engines.base import Engine
from dynamo.model import Tokenizer
from dynamo.model.bundled import bundled
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, Routing, SamplingOptions, StopConditions
from support.sinks import Kept

_PARTS = {
    "sampling_options": SamplingOptions,
    "stop_conditions": StopConditions,
    "output_options": OutputOptions,
    "routing": Routing,
}


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(bundled() / "tokenizer.json")


@cache
def tiny_end() -> int:
    end = tiny_tokenizer().id_of("<|im_end|>")
    assert end is not None
    return end


def chat(question: str) -> list[int]:
    return tiny_tokenizer().encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


def asking(prompt: str | Sequence[int], **more: Any) -> PreprocessedRequest:
    """A greedy request of at most 16 tokens, unless keyword arguments say otherwise; each goes to its part."""
    values: dict[str, dict[str, Any]] = {
        "sampling_options": {"temperature": 0.0},
        "stop_conditions": {"max_tokens": 16},
    }
    for name, value in more.items():
        part = next(part for part, kind in _PARTS.items() if name in kind.__struct_fields__)
        values.setdefault(part, {})[name] = value
    return PreprocessedRequest(
        token_ids=chat(prompt) if isinstance(prompt, str) else prompt,
        eos_token_ids=[tiny_end()],
        **{part: _PARTS[part](**given) for part, given in values.items()},
    )


async def answer(engine: Engine, request: PreprocessedRequest) -> Kept:
    sink = Kept()
    engine.generate(request, sink)
    await sink.done
    return sink


async def text(engine: Engine, request: PreprocessedRequest) -> str:
    sink = await answer(engine, request)
    assert sink.error is None, sink.error
    return tiny_tokenizer().decode(sink.ids)
