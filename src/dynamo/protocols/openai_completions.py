"""POST /v1/completions: the request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dynamo.protocols.openai_fields import GenerationFields, TokenId


class CompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    suffix: str | None = None

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt, whichever of the four ways the client wrote them in (checked by `validate`)."""
        return each_input(self.prompt)


def each_input(value: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """A text, texts, token ids or lists of token ids, as the list of single inputs they stand for."""
    if isinstance(value, str):
        return [value]
    if value and isinstance(value[0], int):
        return [[item for item in value if isinstance(item, int)]]
    return [item for item in value if not isinstance(item, int)]
