"""Reads context length, end-of-sequence tokens and sampling defaults from a model's JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from dynamo.model.tokenizer import Tokenizer
from dynamo.protocols.engine import SamplingOptions

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
# Transformers writes 1e30 where a tokenizer has no limit.
_NO_LIMIT = 1 << 40

_FLOAT_DEFAULTS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
}

Object = Mapping[str, Any]


def context_length(config: Object, tokenizer_config: Object) -> int | None:
    """The limit of tokens for prompt and answer together, or None if the files do not say."""
    for source in (config, _text_config(config)):
        for key in _CONTEXT_KEYS:
            if (length := _count(source.get(key))) is not None:
                return length
    length = _count(tokenizer_config.get("model_max_length"))
    return length if length is not None and length < _NO_LIMIT else None


def vocabulary_size(config: Object) -> int:
    """The size of the model's output, padding included; 0 if the file does not say."""
    return _count(config.get("vocab_size")) or _count(_text_config(config).get("vocab_size")) or 0


def eos_token_ids(
    generation_config: Object,
    config: Object,
    tokenizer_config: Object,
    special_tokens_map: Object,
    tokenizer: Tokenizer,
) -> list[int]:
    """The ids that end an answer: those of the first file that names any, and the tokenizer's own.

    None for a model that only embeds.
    """
    own = [
        id
        for source in (tokenizer_config, special_tokens_map)
        if (token := token_text(source.get("eos_token"))) is not None and (id := tokenizer.id_of(token)) is not None
    ][:1]
    for source in (generation_config, config, _text_config(config)):
        if ids := _ids(source.get("eos_token_id")):
            return list(dict.fromkeys(ids + own))
    return own


def sampling_defaults(generation_config: Object) -> SamplingOptions:
    """The model author's recommended sampling options; empty if `do_sample` is false."""
    if generation_config.get("do_sample") is False:
        return SamplingOptions()
    options = SamplingOptions()
    for name, (low, high) in _FLOAT_DEFAULTS.items():
        value = generation_config.get(name)
        if _is_number(value) and low <= value <= high:
            setattr(options, name, float(value))
    top_k = generation_config.get("top_k")
    if _is_id(top_k) and top_k > 0:
        options.top_k = top_k
    return options


def special_tokens(tokenizer_config: Object, special_tokens_map: Object) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, for use as template variables."""
    found: dict[str, str] = {}
    for source in (special_tokens_map, tokenizer_config):
        for name, value in source.items():
            if name.endswith("_token") and (text := token_text(value)) is not None:
                found[name] = text
    return found


def token_text(value: Any) -> str | None:
    """The text of a special token, which is written as a string or as an object with flags."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _text_config(config: Object) -> Object:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else {}


def _ids(value: Any) -> list[int]:
    return [id for id in (value if isinstance(value, list) else [value]) if _is_id(id)]


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(value: Any) -> int | None:
    return int(value) if _is_number(value) and 0 < value < float("inf") else None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
