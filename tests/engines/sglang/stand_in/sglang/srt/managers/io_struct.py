"""What a scheduler sends after each step: a column for each fact, a place in it for each request."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec


class BatchTokenIDOutput(msgspec.Struct, tag=True, kw_only=True, array_like=True):
    rids: list[str]
    finished_reasons: list[dict[str, Any] | None]
    output_ids: list[array[int]]
    prompt_tokens: list[int]
    completion_tokens: list[int]
    cached_tokens: list[int]
    input_token_logprobs_val: list[Any] | None
    input_token_logprobs_idx: list[Any] | None
    output_token_logprobs_val: list[Any] | None
    output_token_logprobs_idx: list[Any] | None
    input_top_logprobs_val: list[Any] | None
    input_top_logprobs_idx: list[Any] | None
    output_top_logprobs_val: list[Any] | None
    output_top_logprobs_idx: list[Any] | None
    spec_verify_ct: list[int] | None = None
    spec_num_correct_drafts: list[int] | None = None
