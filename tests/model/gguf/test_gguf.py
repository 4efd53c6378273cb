from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.model import ModelError
from dynamo.model.gguf import is_quantised, read_gguf
from dynamo.model.gguf import tokenizer as gguf_tokenizer
from dynamo.model.tokenizer import Tokenizer
from support import models
from support.gguf_writer import byte_level_metadata, gguf_bytes, sentencepiece_metadata, write_gguf

TEXTS = ("hello world 🤖", "  the quick\n\n brown fox's 12345", "<|im_start|>user\nhi<|im_end|>", "été 你好")
on_disk = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tokenizer_of(tmp_path: Path, metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer(gguf_tokenizer.tokenizer_json(read_gguf(write_gguf(tmp_path / "m.gguf", metadata))))


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value_is_read(version: int, tmp_path: Path) -> None:
    metadata = {"a": 1, "b": 0.5, "c": True, "d": "é", "e": ["x", ""], "f": [1, -2], "g": [0.25, 1.0]}
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata, version))
    assert read_gguf(path).metadata == metadata


def test_a_byte_level_gguf_tokenizes_like_its_source(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, byte_level_metadata())
    original = Tokenizer(models.byte_level_json())
    assert [tokenizer.encode(text) for text in TEXTS] == [original.encode(text) for text in TEXTS]
    assert tokenizer.special_ids == original.special_ids


def test_a_sentencepiece_gguf_tokenizes_like_its_source(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, sentencepiece_metadata())
    original = Tokenizer(models.sentencepiece_json())
    assert [tokenizer.encode(text, True) for text in TEXTS] == [original.encode(text, True) for text in TEXTS]
    assert [tokenizer.decode(original.encode(text)) for text in TEXTS[:2]] == [text for text in TEXTS[:2]]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["12345", " x"]),
        ("llama-bpe", ["123", "45", " x"]),
        ("qwen2", ["1", "2", "3", "4", "5", " x"]),
        ("smollm", ["1", "2", "3", "4", "5", " x"]),
    ],
)
def test_the_named_pre_tokenizer_splits_the_text(pre: str, pieces: list[str], tmp_path: Path) -> None:
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", byte_level_metadata(pre)))
    built = tokenizers.Tokenizer.from_str(gguf_tokenizer.tokenizer_json(gguf))
    assert built.pre_tokenizer is not None
    assert ["12345 x"[start:end] for _, (start, end) in built.pre_tokenizer.pre_tokenize_str("12345 x")] == pieces


def test_a_begin_token_is_added_if_the_file_says_so(tmp_path: Path) -> None:
    plain = tokenizer_of(tmp_path, byte_level_metadata())
    marked = tokenizer_of(tmp_path, byte_level_metadata() | {"tokenizer.ggml.add_bos_token": True})
    assert plain.encode("fox", True) == plain.encode("fox")
    assert marked.encode("fox", True) == [0, *marked.encode("fox")]


def test_context_length_end_tokens_and_templates_are_found(tmp_path: Path) -> None:
    more = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.chat_templates": ["tool_use"]}
    metadata = byte_level_metadata() | more | {"tokenizer.chat_template.tool_use": "tools"}
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", metadata))
    assert gguf_tokenizer.context_length(gguf) == 1024
    assert gguf_tokenizer.eos_token_ids(gguf) == [2, 0]
    assert gguf_tokenizer.special_tokens(gguf) == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert gguf_tokenizer.templates(gguf) == {"default": models.CHATML, "tool_use": "tools"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "GGUF tokenizer 'rwkv' is not known"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "no usable tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["ab"]}, "a merge that is not a pair"),
        ({"tokenizer.ggml.merges": ["nope nope"]}, "is broken"),
        ({"tokenizer.ggml.token_type": [1]}, "token types"),
    ],
)
def test_an_inconsistent_vocabulary_is_rejected(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        tokenizer_of(tmp_path, byte_level_metadata() | change)


def test_a_file_without_vocabulary_is_rejected(tmp_path: Path) -> None:
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}))
    with pytest.raises(ModelError, match=r"has no tokenizer: .* --model-config"):
        gguf_tokenizer.tokenizer_json(gguf)
    assert gguf_tokenizer.eos_token_ids(gguf) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"GGUF", "it ends at byte 4"),
        (b"GGML" + bytes(40), "does not start with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1, known are 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "in the middle of its metadata"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "in the middle of its metadata"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 99), "unknown type of value 99"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**60), "in the middle of its metadata"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 9, "nested more than"),
        (b"GGUF" + struct.pack("<IQQQc", 3, 0, 1, 1, b"\xff"), "not UTF-8"),
    ],
)
def test_a_malformed_gguf_is_rejected_with_the_reason(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        read_gguf(path)


@on_disk
@given(data=st.binary(max_size=300))
def test_random_bytes_never_crash_the_reader(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 5) + data)
    try:
        read_gguf(path)
    except ModelError:
        pass
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 5, 0) + data)
    try:
        is_quantised(path)
    except ModelError:
        pass


@pytest.mark.parametrize(("types", "quantised"), [((0, 1, 28, 30), False), ((), False), ((0, 8), True), ((3, 0), True)])
def test_a_file_with_a_tensor_of_a_ggml_type_is_quantised(
    types: tuple[int, ...], quantised: bool, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    tensors = b"".join(struct.pack("<Qc I2Q IQ".replace(" ", ""), 1, b"t", 2, 32, 1, each, 0) for each in types)
    head = bytearray(gguf_bytes({"general.architecture": "llama"}, tensors=b""))
    struct.pack_into("<Q", head, 8, len(types))
    path.write_bytes(bytes(head) + tensors)
    assert is_quantised(path) is quantised


def test_a_file_that_ends_in_the_middle_of_its_tensors_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0))
    with pytest.raises(ModelError, match="it ends at byte 24"):
        is_quantised(path)


SMALL = gguf_bytes(
    {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 3,
    }
)


@on_disk
@given(changes=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_file_is_read_or_rejected(changes: list[tuple[int, int]], tmp_path: Path) -> None:
    damaged = bytearray(SMALL)
    for at, byte in changes:
        damaged[at] = byte
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged)
    try:
        gguf = read_gguf(path)
        gguf_tokenizer.tokenizer_json(gguf)
        gguf_tokenizer.special_tokens(gguf)
        gguf_tokenizer.eos_token_ids(gguf)
    except ModelError:
        pass
