"""Probabilities of tokens in the two shapes OpenAI has for them."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.model import Tokenizer
from dynamo.pipeline import choice
from dynamo.protocols.openai_answers import ChatLogprobs, TextLogprobs, TokenAlternative, TokenLogprob


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[choice.TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(content=[_entry(tokenizer, token) for token in tokens])


def _entry(tokenizer: Tokenizer, token: choice.TokenLogprob) -> TokenLogprob:
    raw = tokenizer.token_bytes(token.token_id)
    return TokenLogprob(
        token=raw.decode(errors="replace"),
        logprob=token.logprob,
        bytes=list(raw),
        top_logprobs=[_alternative(tokenizer, top.token_id, top.logprob) for top in token.top],
    )


def _alternative(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenAlternative:
    raw = tokenizer.token_bytes(token_id)
    return TokenAlternative(token=raw.decode(errors="replace"), logprob=logprob, bytes=list(raw))


def text_logprobs(tokenizer: Tokenizer, tokens: Sequence[choice.TokenLogprob], offset: int = 0) -> TextLogprobs:
    told = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in tokens:
        text = tokenizer.token_bytes(token.token_id).decode(errors="replace")
        told.tokens.append(text)
        told.token_logprobs.append(token.logprob)
        told.top_logprobs.append(
            {tokenizer.token_bytes(top.token_id).decode(errors="replace"): top.logprob for top in token.top}
        )
        told.text_offset.append(offset)
        offset += len(text)
    return told
