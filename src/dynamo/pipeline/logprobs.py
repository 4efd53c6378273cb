"""Probabilities of tokens in the two shapes OpenAI has for them."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.model import Tokenizer
from dynamo.pipeline import choice
from dynamo.protocols.engine import TopLogprob
from dynamo.protocols.openai_answers import ChatLogprob, ChatLogprobs, TextLogprobs, TokenAlternative

IMPOSSIBLE = -9999.0
"""JSON has no infinity: OpenAI writes this for a token that could not come."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[choice.TokenLogprob], top: int) -> ChatLogprobs:
    """`top` is how many alternatives the client asked for."""
    return ChatLogprobs(content=[_entry(tokenizer, token, top) for token in tokens])


def _entry(tokenizer: Tokenizer, token: choice.TokenLogprob, top: int) -> ChatLogprob:
    raw = tokenizer.token_bytes(token.token_id)
    return ChatLogprob(
        token=raw.decode(errors="replace"),
        logprob=_finite(token.logprob),
        bytes=list(raw),
        top_logprobs=[_alternative(tokenizer, other) for other in _likeliest(token.top, top)],
    )


def _alternative(tokenizer: Tokenizer, other: TopLogprob) -> TokenAlternative:
    raw = tokenizer.token_bytes(other.token_id)
    return TokenAlternative(token=raw.decode(errors="replace"), logprob=_finite(other.logprob), bytes=list(raw))


def text_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[choice.TokenLogprob], top: int, offset: int = 0
) -> TextLogprobs:
    """Here the token itself is always among its alternatives, even as one more than `top`."""
    told = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in tokens:
        text = tokenizer.token_bytes(token.token_id).decode(errors="replace")
        told.tokens.append(text)
        told.text_offset.append(offset)
        offset += len(text)
        if token.logprob is None:
            told.token_logprobs.append(None)
            told.top_logprobs.append(None)
            continue
        told.token_logprobs.append(_finite(token.logprob))
        others = {
            tokenizer.token_bytes(other.token_id).decode(errors="replace"): _finite(other.logprob)
            for other in _likeliest(token.top, top)
        }
        told.top_logprobs.append(others | {text: _finite(token.logprob)} if top else {})
    return told


def _likeliest(tokens: Sequence[TopLogprob], top: int) -> list[TopLogprob]:
    return sorted(tokens, key=lambda token: -_finite(token.logprob))[:top]


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and logprob > IMPOSSIBLE else IMPOSSIBLE
