"""Where in an answer the tokens stand that begin and end its thinking."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from .args import ReasoningArgs


def thinking(
    reasoning: ReasoningArgs, token_ids: Sequence[int], ends: Collection[int], limit: int, mean: int | None
) -> dict[int, int]:
    """The two tokens around the thinking, by their positions in the sequence.

    Thinking that began in the prompt, in a turn that has not ended since, is this answer's own: another worker was cut
    short. Of an answer that ends by itself only the `mean` length is known.
    """
    packed = array("I", token_ids).tobytes()
    prompt = len(token_ids)
    begin = _last(packed, reasoning.start_thinking_token_id)
    if begin <= max((_last(packed, end) for end in ends), default=-1):
        begin = prompt
    elif begin < _last(packed, reasoning.end_thinking_token_id):
        return {}
    length = prompt - begin + limit
    expected = length if mean is None else min(length, mean)
    thoughts = min(max(int(expected * reasoning.thinking_ratio), 2), length)
    marks = {begin: reasoning.start_thinking_token_id}
    if thoughts > 1:
        marks[begin + thoughts - 1] = reasoning.end_thinking_token_id
    return marks


def _last(packed: bytes, token: int) -> int:
    """Where in packed tokens it stands last, or -1."""
    if not 0 <= token < 2**32:
        return -1
    wanted = array("I", [token]).tobytes()
    size = len(wanted)
    at = packed.rfind(wanted)
    while at >= 0 and at % size:
        at = packed.rfind(wanted, 0, at + size - 1)
    return at // size
