from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.model.detokenize import Decoder, UnknownToken, byte_characters, json_escaped
from dynamo.model.tokenizer import Tokenizer
from support import models


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(models.byte_level_json(), 4096)


@cache
def sentencepiece() -> Tokenizer:
    return Tokenizer(models.sentencepiece_json(), 4096)


def in_groups(decoder: Decoder, ids: Sequence[int], cuts: Sequence[int], escaped: bool = False) -> str:
    push = decoder.push_escaped if escaped else decoder.push
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    text = "".join(push(ids[start:end]) for start, end in pairwise(edges))
    end = decoder.flush()
    return text + (json_escaped(end) if escaped else end)


cuts = st.lists(st.integers(0, 1000), max_size=12)
any_ids = st.lists(st.integers(0, byte_level().vocab_size + 5), max_size=40)
byte_ids = st.lists(st.integers(3, 258), max_size=30)


@given(ids=any_ids, cuts=cuts, skip=st.booleans())
def test_byte_level_ids_decode_to_the_same_text_in_any_grouping(ids: list[int], cuts: list[int], skip: bool) -> None:
    whole = byte_level().decode(ids, skip_special_tokens=skip)
    assert in_groups(byte_level().decoder([], skip), ids, cuts) == whole


@given(ids=any_ids, cuts=cuts, skip=st.booleans())
def test_escaped_text_is_the_inside_of_a_json_string(ids: list[int], cuts: list[int], skip: bool) -> None:
    escaped = in_groups(byte_level().decoder([], skip), ids, cuts, escaped=True)
    assert json.loads(f'"{escaped}"') == byte_level().decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=40), cuts=cuts)
def test_byte_level_text_survives_encoding_and_decoding(text: str, cuts: list[int]) -> None:
    ids = byte_level().encode(text)
    assert in_groups(byte_level().decoder([], False), ids, cuts) == text.replace("\0", "")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), cuts=cuts)
@settings(max_examples=60)
def test_sentencepiece_text_survives_encoding_and_decoding(text: str, cuts: list[int]) -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode(text)
    assert in_groups(tokenizer.decoder([], False), ids, cuts) == tokenizer.decode(ids, skip_special_tokens=False)


@given(ids=st.lists(st.integers(0, sentencepiece().vocab_size + 5), max_size=30), cuts=cuts, skip=st.booleans())
@settings(max_examples=60)
def test_sentencepiece_ids_give_the_same_text_in_any_grouping(ids: list[int], cuts: list[int], skip: bool) -> None:
    one_by_one = in_groups(sentencepiece().decoder([], skip), ids, range(len(ids)))
    assert in_groups(sentencepiece().decoder([], skip), ids, cuts) == one_by_one


@given(ids=byte_ids)
@settings(max_examples=60)
def test_bytes_that_never_become_a_character_are_still_shown(ids: list[int]) -> None:
    decoder = sentencepiece().decoder([], True)
    text = decoder.push([*ids, sentencepiece().encode("fox")[-1]]) + decoder.flush()
    assert len(text) > 0
    assert decoder.flush() == ""


def test_an_emoji_split_over_tokens_appears_with_its_last_token() -> None:
    ids = byte_level().encode("🤖")
    assert len(ids) > 2
    decoder = byte_level().decoder()
    assert [decoder.push([id]) for id in ids] == [""] * (len(ids) - 1) + ["🤖"]
    assert decoder.flush() == ""


def test_a_special_token_inside_a_split_character_is_skipped_without_breaking_it() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("🤖")
    end = tokenizer.id_of("<|im_end|>")
    assert end is not None
    decoder = tokenizer.decoder()
    assert decoder.push([ids[0], end, *ids[1:]]) == "🤖"


def test_a_character_cut_off_by_the_end_is_a_replacement_character() -> None:
    decoder = byte_level().decoder()
    assert decoder.push(byte_level().encode("🤖")[:1]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


@pytest.mark.parametrize("json", [models.byte_level_json(), models.sentencepiece_json()], ids=["bytes", "pieces"])
def test_ids_that_pad_the_vocabulary_decode_to_nothing_and_others_are_refused(json: str) -> None:
    size = Tokenizer(json).vocab_size
    padded = Tokenizer(json, size + 64)
    word = padded.encode("fox")
    for tokenizer, outside in ((Tokenizer(json), size), (padded, size + 64), (padded, -1), (padded, 2**40)):
        decoder = tokenizer.decoder(word)
        for push in (decoder.push, decoder.push_escaped):
            with pytest.raises(UnknownToken, match=f"token id {outside}, outside"):
                push([outside])
    decoder = padded.decoder(word)
    assert decoder.push([size, *word, size + 63]) + decoder.flush() == padded.decoder(word).push(word)


def test_special_tokens_are_shown_on_request() -> None:
    for tokenizer, token in ((byte_level(), "<|im_end|>"), (sentencepiece(), "</s>")):
        id = tokenizer.id_of(token)
        assert id is not None
        assert tokenizer.decoder([], False).push([id]) == token
        assert tokenizer.decoder([], True).push([id]) == ""


def test_the_first_word_keeps_its_space_after_a_prompt() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("world")
    assert tokenizer.token_bytes(ids[0]).startswith(b" ")
    after_prompt = tokenizer.decoder(tokenizer.encode("hello"))
    assert after_prompt.push(ids) + after_prompt.flush() == " world"
    at_start = tokenizer.decoder([])
    assert at_start.push(ids) + at_start.flush() == "world"


def test_a_prompt_that_ends_inside_a_character_is_not_repeated() -> None:
    tokenizer = sentencepiece()
    prompt = tokenizer.encode("hello 🤖")[:-2]
    decoder = tokenizer.decoder(prompt)
    assert decoder.push(tokenizer.encode("fox")) + decoder.flush() == " fox"


@pytest.mark.parametrize("skip", [True, False])
def test_bytes_that_stay_incomplete_are_flushed(skip: bool) -> None:
    tokenizer = sentencepiece()
    continuation = tokenizer.id_of("<0x9F>")
    assert continuation is not None
    decoder = tokenizer.decoder([], skip)
    text = decoder.push([continuation] * 100) + decoder.flush()
    assert set(text) == {"\ufffd"}
    assert len(text) == 100


def test_every_byte_has_its_own_printable_character() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert characters.isprintable()
    assert characters[ord(" ")] == "Ġ"
    assert characters[ord("\n")] == "Ċ"
