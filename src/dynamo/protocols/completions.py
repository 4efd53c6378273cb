"""The request of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, cast

from msgspec import Meta

from dynamo.protocols.fields import GenerationFields, TokenId


class CompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    max_tokens: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    """Zero, with `echo`: only the prompt, for the log probabilities of its tokens."""
    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    suffix: str | None = None

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt, for each of the four forms a client may write (checked by `validate`)."""
        return split_inputs(self.prompt)


def split_inputs(value: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The single inputs in a text, a list of texts, a list of token ids or a list of such lists (not a mixture)."""
    if isinstance(value, str):
        return [value]
    if value and isinstance(value[0], int):
        return [cast(list[int], value)]
    return cast(list[str | list[int]], value)
