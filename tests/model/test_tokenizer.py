from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.model import ModelError
from dynamo.model.tokenizer import Tokenizer
from support import models
from support.running import run

VOCABULARIES = {
    "byte_level": models.byte_level_json,
    "sentencepiece": models.sentencepiece_json,
    "metaspace": models.metaspace_json,
}


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


def test_bpe_vocabularies_of_both_kinds_are_encoded_by_fastokens() -> None:
    assert Tokenizer(models.byte_level_json()).backend == "fastokens"
    assert Tokenizer(models.sentencepiece_json()).backend == "fastokens"


def test_pushed_one_by_one_ids_give_their_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the quick brown fox, 42 dogs")
    decoder = tokenizer.decoder()
    assert "".join(decoder.push([id]) for id in ids) + decoder.flush() == tokenizer.decode(ids)


def test_a_tokenizer_fastokens_cannot_load_is_encoded_by_the_reference() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"fox": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(words.to_str())
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.encode("fox ox fox") == [0, 1, 0]


def test_the_written_name_of_a_byte_token_is_text(tokenizer: Tokenizer, reference: tokenizers.Tokenizer) -> None:
    for text in ("<0x0A>", "a <0x0A><0xFF> b", "x<0x41>\n<0x"):
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids


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


@pytest.mark.parametrize("json_text", [models.byte_level_json(), models.sentencepiece_json()], scope="module")
def test_token_bytes_joined_are_the_text(tokenizer: Tokenizer) -> None:
    text = "hello 🤖 \n été"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode().lstrip(" ") == text


def test_an_id_outside_the_vocabulary_has_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**7) == b""
    assert tokenizer.token_bytes(-1) == b""
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


READING = """
from pathlib import Path
from msgspec import _utils
from dynamo.model import Tokenizer
from dynamo.model.bundled import bundled
from dynamo.runtime.discovery.folder import Folder

def prepared_late(kind):
    raise AssertionError(f"{kind} is prepared when it is first read")

_utils._get_class_mro_and_typevar_mappings = prepared_late
Tokenizer.from_file(bundled() / "tokenizer.json")
folder = Folder(Path("records"))
folder.open()
folder.put("a", b"b")
assert folder.scan() == {"a": b"b"}
"""


def test_what_threads_read_has_its_types_prepared_by_the_import(tmp_path: Path) -> None:
    # Two threads that prepare one type at once crash the process, so a frontend that finds two models as it starts.
    ended = run(tmp_path, program=[sys.executable, "-c", READING])
    assert ended.returncode == 0, ended.stderr.decode()
