"""Token log probabilities in OpenAI's chat and completions formats."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.model import Tokenizer
from dynamo.pipeline.choice import TokenLogprob
from dynamo.protocols.answers import ChatLogprob, ChatLogprobs, TextLogprobs, TokenAlternative
from dynamo.protocols.engine import TopLogprob

IMPOSSIBLE = -9999.0
"""OpenAI's value for a token of probability zero, since JSON has no infinity."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], top: int) -> ChatLogprobs:
    """`top` is how many alternatives the client asked for."""
    return ChatLogprobs(content=[_entry(tokenizer, token, top) for token in tokens])


def _entry(tokenizer: Tokenizer, token: TokenLogprob, top: int) -> ChatLogprob:
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


def text_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], top: int, offset: int = 0) -> TextLogprobs:
    """In this format the token itself is always among its alternatives, in addition to `top` others if need be."""
    logprobs = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in tokens:
        text = tokenizer.token_bytes(token.token_id).decode(errors="replace")
        logprobs.tokens.append(text)
        logprobs.text_offset.append(offset)
        offset += len(text)
        if token.logprob is None:
            logprobs.token_logprobs.append(None)
            logprobs.top_logprobs.append(None)
            continue
        logprobs.token_logprobs.append(_finite(token.logprob))
        others = {
            tokenizer.token_bytes(other.token_id).decode(errors="replace"): _finite(other.logprob)
            for other in _likeliest(token.top, top)
        }
        logprobs.top_logprobs.append(others | {text: _finite(token.logprob)} if top else {})
    return logprobs


def _likeliest(tokens: Sequence[TopLogprob], top: int) -> list[TopLogprob]:
    return sorted(tokens, key=lambda token: -_finite(token.logprob))[:top]


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and logprob > IMPOSSIBLE else IMPOSSIBLE
