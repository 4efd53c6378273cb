from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from dynamo.model import ModelError
from dynamo.model.tokenizer import Tokenizer

VOCABULARIES = {"byte_level": models.byte_level_json, "sentencepiece": models.sentencepiece_json}


@pytest.fixture(scope="module", params=sorted(VOCABULARIES))
def json_text(request: pytest.FixtureRequest) -> str:
    return VOCABULARIES[request.param]()


@pytest.fixture(scope="module")
def tokenizer(json_text: str) -> Tokenizer:
    return Tokenizer(json_text)


@pytest.fixture(scope="module")
def reference(json_text: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json_text)


@settings(max_examples=100)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60), special=st.booleans()
)
def test_ids_are_those_of_the_reference(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str, special: bool
) -> None:
    assert tokenizer.encode(text, special) == reference.encode(text, add_special_tokens=special).ids


def test_a_byte_level_vocabulary_is_encoded_by_fastokens() -> None:
    assert Tokenizer(models.byte_level_json()).backend == "fastokens"


def test_a_vocabulary_fastokens_reads_differently_is_encoded_by_the_reference() -> None:
    assert Tokenizer(models.sentencepiece_json()).backend == "tokenizers"


def test_inline_special_tokens_become_their_ids() -> None:
    tokenizer = Tokenizer(models.byte_level_json())
    start, end = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
    ids = tokenizer.encode("<|im_start|>user<|im_end|>")
    assert (ids[0], ids[-1]) == (start, end)
    assert {start, end} <= tokenizer.special_ids


def test_nul_characters_are_dropped(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\0b") == tokenizer.encode("ab")


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_a_surrogate_pair_becomes_its_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("\ud83e\udd16") == tokenizer.encode("🤖")


def test_truncation_and_padding_settings_are_ignored(json_text: str) -> None:
    limited = tokenizers.Tokenizer.from_str(json_text)
    limited.enable_truncation(3)
    limited.enable_padding(length=50)
    text = "the quick brown fox jumps over the lazy dog"
    assert Tokenizer(limited.to_str()).encode(text) == Tokenizer(json_text).encode(text)


async def test_long_text_gives_the_same_ids_from_a_thread(tokenizer: Tokenizer) -> None:
    text = "the quick brown fox 🤖\n" * 5000
    assert await tokenizer.encode_async(text) == tokenizer.encode(text)
    assert await tokenizer.encode_async("fox", True) == tokenizer.encode("fox", True)


def test_token_bytes_joined_are_the_text(tokenizer: Tokenizer) -> None:
    text = "hello 🤖 \n été"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode().lstrip(" ") == text


def test_an_id_outside_the_vocabulary_has_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**7) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_of(10**7) is None
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.decode([-5, 10**7, 2**50]) == ""


def test_an_added_token_replaces_the_word_that_had_its_id() -> None:
    changed = json.loads(models.byte_level_json())
    changed["added_tokens"][1]["content"] = "<|other|>"
    changed["added_tokens"][1]["id"] = 1
    tokenizer = Tokenizer(json.dumps(changed))
    id = tokenizer.id_of("<|other|>")
    assert id is not None
    decoder = tokenizer.decoder([], skip_special_tokens=False)
    assert decoder.push([id]) + decoder.flush() == tokenizer.decode([id], skip_special_tokens=False)


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"model": {"type": "BPE"}}', '{"version": "1.0"}'])
def test_a_broken_tokenizer_file_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer.json: cannot load the tokenizer"):
        Tokenizer.from_file(path)


def test_a_tokenizer_without_a_decoder_still_decodes_in_pieces() -> None:
    bare = json.loads(models.byte_level_json())
    bare["decoder"] = None
    tokenizer = Tokenizer(json.dumps(bare))
    ids = tokenizer.encode("hello world")
    decoder = tokenizer.decoder([])
    assert decoder.push(ids) + decoder.flush() == tokenizer.decode(ids)
