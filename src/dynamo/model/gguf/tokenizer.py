"""Converts a GGUF file's tokenizer, templates and limits to their Hugging Face form."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from dynamo.model.gguf.file import Gguf
from dynamo.model.gguf.llama_cpp import LlamaVocabulary
from dynamo.model.tokenizer import Tokenizer
from dynamo.protocols.errors import ModelError

log = logging.getLogger(__name__)

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_KEY = "tokenizer.ggml."
# A piece is split at every position to find its merges: this bounds the time a hostile file can cost.
_LONGEST_PIECE = 256

_GPT2 = {"gpt-2", "gpt2", "phi-2", "olmo"}
_LLAMA3 = {"llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3"}
_QWEN2 = {"qwen2", "deepseek-r1-qwen", "stablelm2"}
_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r"}
_KNOWN = _GPT2 | _LLAMA3 | _QWEN2 | _SINGLE_DIGITS
_HINT = "give the model's Hugging Face folder with --model-config"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def load_tokenizer(path: Path, gguf: Gguf) -> Tokenizer:
    """The tokenizer of the file with these metadata; blocks. Raises ModelError."""
    kind, pre = gguf.metadata.get(_KEY + "model"), gguf.metadata.get(_KEY + "pre", "default")
    if kind != "gpt2" or pre in _KNOWN:
        return Tokenizer(tokenizer_json(gguf))
    try:
        vocabulary = LlamaVocabulary(path, gguf)
    except ModelError as error:
        raise ModelError(f"GGUF pre-tokenizer {pre!r} is known to llama.cpp alone, and {error}: {_HINT}") from error
    log.info("encoding with llama.cpp: GGUF pre-tokenizer %r", pre)
    return Tokenizer(tokenizer_json(gguf), vocabulary=vocabulary)


def tokenizer_json(gguf: Gguf) -> str:
    """The equivalent tokenizer.json, which only decodes where the file's pre-tokenizer is not among ours."""
    kind = gguf.metadata.get(_KEY + "model")
    try:
        match kind:
            case "gpt2":
                tokenizer = _byte_level(gguf)
            case "llama":
                tokenizer = _sentencepiece(gguf)
            case None:
                raise ModelError(f"the GGUF file has no tokenizer: {_HINT}")
            case _:
                raise ModelError(f"GGUF tokenizer {kind!r} is not known: {_HINT}")
        _add_special(tokenizer, gguf)
        return tokenizer.to_str()
    except ModelError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"the tokenizer in the GGUF file is broken: {error}") from error


def context_length(gguf: Gguf) -> int | None:
    value = gguf.metadata.get(f"{gguf.metadata.get('general.architecture')}.context_length")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def eos_token_ids(gguf: Gguf) -> list[int]:
    """The ids that end an answer; none for a model that only embeds."""
    ids = [_id(gguf, name) for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(id for id in ids if id is not None))


def special_tokens(gguf: Gguf) -> dict[str, str]:
    tokens = _tokens(gguf)
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    return {f"{name}_token": tokens[id] for key, name in names.items() if (id := _id(gguf, key)) is not None}


def templates(gguf: Gguf) -> dict[str, str]:
    """The chat templates by name; empty for a model that cannot chat."""
    key = "tokenizer.chat_template"
    found = {"default": gguf.metadata.get(key)}
    names = gguf.metadata.get("tokenizer.chat_templates")
    for name in names if isinstance(names, list) else []:
        found[str(name)] = gguf.metadata.get(f"{key}.{name}")
    return {name: text for name, text in found.items() if isinstance(text, str)}


def _byte_level(gguf: Gguf) -> tokenizers.Tokenizer:
    merges = _list(gguf, "merges", str)
    pre = gguf.metadata.get(_KEY + "pre", "default")
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space:
            raise ModelError(f"the GGUF file has a merge that is not a pair: {merge!r}")
        pairs.append((left, right))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=_vocab(gguf), merges=pairs, ignore_merges=pre in _LLAMA3))
    if pre in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(name: Any) -> pre_tokenizers.PreTokenizer:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _LLAMA3:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORDS % r"\p{N}{1,3}"), "isolated"), whole])
    if name in _QWEN2:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORDS % r"\p{N}"), "isolated"), whole])
    if name in _SINGLE_DIGITS:
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    return whole


def _sentencepiece(gguf: Gguf) -> tokenizers.Tokenizer:
    tokens, vocab = _tokens(gguf), _vocab(gguf)
    scores = _list(gguf, "scores", float)
    kinds = _kinds(gguf)
    if len(scores) != len(tokens):
        raise ModelError(f"the GGUF file has {len(tokens)} tokens but {len(scores)} scores")
    unknown = _id(gguf, "unknown")
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(tokens, vocab, scores, kinds),
            unk_token=tokens[unknown if unknown is not None else 0],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if gguf.metadata.get(_KEY + "add_space_prefix", True):
        marks.insert(0, normalizers.Prepend("▁"))
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(tokens: list[str], vocab: dict[str, int], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """SentencePiece stores scores instead of merges: the higher a piece's score, the earlier its merge."""
    ranked = []
    for id, piece in enumerate(tokens):
        if kinds[id] in (_UNKNOWN, _CONTROL, _BYTE) or not 1 < len(piece) <= _LONGEST_PIECE:
            continue
        for at in range(1, len(piece)):
            left, right = vocab.get(piece[:at]), vocab.get(piece[at:])
            if left is not None and right is not None:
                ranked.append((-scores[id], left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, left, right in ranked]


def _add_special(tokenizer: tokenizers.Tokenizer, gguf: Gguf) -> None:
    tokens, kinds = _tokens(gguf), _kinds(gguf)
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL and token]
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED and token]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in defined])
    bos = _id(gguf, "bos")
    if bos is not None and gguf.metadata.get(_KEY + "add_bos_token", gguf.metadata[_KEY + "model"] == "llama"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
        )


def _tokens(gguf: Gguf) -> list[str]:
    return _list(gguf, "tokens", str)


def _vocab(gguf: Gguf) -> dict[str, int]:
    return {token: id for id, token in enumerate(_tokens(gguf))}


def _kinds(gguf: Gguf) -> list[int]:
    tokens = _tokens(gguf)
    if _KEY + "token_type" not in gguf.metadata:
        return [1] * len(tokens)
    kinds = _list(gguf, "token_type", int)
    if len(kinds) != len(tokens):
        raise ModelError(f"the GGUF file has {len(tokens)} tokens but {len(kinds)} token types")
    return kinds


def _list(gguf: Gguf, name: str, kind: type) -> list[Any]:
    values = gguf.metadata.get(_KEY + name)
    if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
        raise ModelError(f"the GGUF file has no usable {_KEY}{name}")
    return values


def _id(gguf: Gguf, name: str) -> int | None:
    value = gguf.metadata.get(f"{_KEY}{name}_token_id")
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_tokens(gguf))
    return value if known else None
