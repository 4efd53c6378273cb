"""A writer of GGUF metadata, as small as the tests need it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from support.models import CHATML, byte_level_json, sentencepiece_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def gguf_bytes(metadata: dict[str, Any], version: int = 3, tensors: bytes = b"\0" * 64) -> bytes:
    """Whole numbers become u32 (i32 in arrays), as the converters of llama.cpp write them."""
    pairs = b"".join(_string(key) + _typed(value) for key, value in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata)) + pairs + tensors


def byte_level_metadata(pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """The byte-level test vocabulary as a GGUF file carries it."""
    parsed = json.loads(byte_level_json())
    vocab = parsed["model"]["vocab"] | {token["content"]: token["id"] for token in parsed["added_tokens"]}
    kinds = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in parsed["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    return {
        "general.architecture": "llama",
        "llama.context_length": 1024,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(id, NORMAL) for id in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in parsed["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|im_end|>"],
        "tokenizer.chat_template": CHATML,
        **more,
    }


def sentencepiece_metadata(**more: Any) -> dict[str, Any]:
    """The SentencePiece test vocabulary with scores, from which its merges must be found again."""
    model = json.loads(sentencepiece_json())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ranks = {"".join(merge): rank for rank, merge in reversed(list(enumerate(model["merges"])))}
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    return {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(ranks.get(token, 10**6)) for token in tokens],
        "tokenizer.ggml.token_type": kinds + [NORMAL] * (len(tokens) - len(kinds)),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    path.write_bytes(gguf_bytes(metadata))
    return path


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(f"no GGUF type for {type(value)}")
