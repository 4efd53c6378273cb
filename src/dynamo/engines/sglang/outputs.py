"""Pure functions that turn the `meta_info` of SGLang's chunks into the parts of an `EngineOutput`.

A step of its scheduler is read into the same `meta_info`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from dynamo.protocols.engine import EngineOutput, TopLogprob
from dynamo.protocols.errors import DynamoException, HttpError, InvalidArgument, Unavailable

Scored = Sequence[Any]
"""(log probability, token id, text or None)"""


def refusal(reason: dict[str, Any]) -> DynamoException | None:
    """An abort with an HTTP status is SGLang's answer to a request it cannot run."""
    status = reason.get("status_code")
    if reason.get("type") != "abort" or status is None:
        return None
    message = str(reason.get("message") or "SGLang refused the request")
    if status == 400:
        return InvalidArgument(message)
    return Unavailable(message) if status == 503 else HttpError(int(status), message)


def finish_reason(reason: dict[str, Any]) -> tuple[str, str | int | None]:
    """The reason, and the token id or text that matched."""
    kind, matched = reason.get("type"), reason.get("matched")
    if kind == "stop":
        return "stop", matched if isinstance(matched, (int, str)) else None
    if kind in ("length", "abort"):
        return "length" if kind == "length" else "cancelled", None
    return f"error: SGLang ended with {kind}", None


def step_facts(step: Any, at: int, *, scored: bool) -> dict[str, Any]:
    """The `meta_info` of one request in a `BatchTokenIDOutput`; `scored`: with log probabilities."""
    facts: dict[str, Any] = {
        "finish_reason": step.finished_reasons[at],
        "prompt_tokens": step.prompt_tokens[at],
        "completion_tokens": step.completion_tokens[at],
        "cached_tokens": step.cached_tokens[at],
    }
    if scored:
        for side in ("input", "output"):
            facts[f"{side}_token_logprobs"] = _pairs(
                _of(step, f"{side}_token_logprobs_val", at), _of(step, f"{side}_token_logprobs_idx", at)
            )
            values, ids = _of(step, f"{side}_top_logprobs_val", at), _of(step, f"{side}_top_logprobs_idx", at)
            facts[f"{side}_top_logprobs"] = [_pairs(*each) for each in zip(values, ids, strict=True)]
    return facts


def _of(step: Any, name: str, at: int) -> Sequence[Any]:
    """A step without any of these has None or an empty list for all its requests."""
    column = getattr(step, name)
    return (column[at] or ()) if column else ()


def _pairs(values: Sequence[float] | None, ids: Sequence[int] | None) -> list[Scored]:
    return [*zip(values or (), ids or (), repeat(None))]


def sampled(output: EngineOutput, facts: dict[str, Any], shown: int) -> None:
    """Add the log probabilities of the chunk's tokens, and of the `shown` likeliest at each place."""
    tokens: Sequence[Scored] = facts.get("output_token_logprobs") or ()
    tops = facts.get("output_top_logprobs") or [None] * len(tokens)
    output.log_probs = [token[0] for token in tokens]
    output.top_logprobs = [_row(token, top, shown) for token, top in zip(tokens, tops, strict=False)]


def prompt_logprobs(facts: dict[str, Any], shown: int) -> list[list[TopLogprob] | None]:
    """None for the first token, then a list for each: the token itself, then the likeliest in its place."""
    tokens: Sequence[Scored] = facts.get("input_token_logprobs") or ()
    tops = facts.get("input_top_logprobs") or [None] * len(tokens)
    rows = [_row(token, top, shown) for token, top in zip(tokens[1:], tops[1:], strict=False)]
    return [None, *rows]


def _row(token: Scored, top: Sequence[Scored] | None, shown: int) -> list[TopLogprob]:
    """The token itself first, and not again among the likeliest."""
    likeliest = (top or ())[:shown]
    rank = next((at for at, each in enumerate(likeliest, 1) if each[1] == token[1]), None)
    row = [TopLogprob(token_id=token[1], logprob=token[0], rank=rank)]
    return row + [
        TopLogprob(token_id=each[1], logprob=each[0], rank=at)
        for at, each in enumerate(likeliest, 1)
        if each[1] != token[1]
    ]
