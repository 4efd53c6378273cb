from __future__ import annotations

from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines.mistralrs.vocabulary import Vocabulary
from dynamo.model import Tokenizer
from dynamo.protocols.errors import InvalidArgument
from support.models import byte_level_json, sentencepiece_json

SCHEMES = {"byte-level": byte_level_json, "sentencepiece": sentencepiece_json}


@cache
def made(scheme: str, rename: bool) -> tuple[Tokenizer, Vocabulary, tokenizers.Tokenizer]:
    tokenizer = Tokenizer(SCHEMES[scheme]())
    vocabulary = Vocabulary(tokenizer, 2, rename=rename)
    return tokenizer, vocabulary, tokenizers.Tokenizer.from_str(vocabulary.tokenizer_json().decode())


@pytest.mark.parametrize("rename", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
def test_any_ids_become_a_text_that_becomes_the_same_ids(scheme: str, rename: bool, data: st.DataObject) -> None:
    tokenizer, vocabulary, given_away = made(scheme, rename)
    ids = data.draw(st.lists(st.sampled_from(sorted(tokenizer.tokens)), max_size=40))
    assert given_away.encode(vocabulary.prompt(ids)).ids == ids


@pytest.mark.parametrize("rename", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_ids_survive_together(scheme: str, rename: bool) -> None:
    tokenizer, vocabulary, given_away = made(scheme, rename)
    every = sorted(tokenizer.tokens)
    assert given_away.encode(vocabulary.prompt(every)).ids == every
    assert given_away.get_vocab_size() == tokenizer.vocab_size


@pytest.mark.parametrize("scheme", SCHEMES)
@given(text=st.text(max_size=40))
def test_text_that_a_grammar_forces_is_cut_into_tokens_that_spell_it(scheme: str, text: str) -> None:
    tokenizer, _, given_away = made(scheme, True)
    text = "".join(c for c in text if not "\ue000" <= c <= "\uf8ff").replace("</s>", "").replace("▁", "")
    ids = given_away.encode(text).ids
    assert b"".join(tokenizer.token_bytes(id) for id in ids) == text.encode()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_words_that_a_grammar_forces_are_the_models_own_tokens(scheme: str) -> None:
    tokenizer, _, given_away = made(scheme, True)
    forced = given_away.encode(" capital").ids
    assert len(forced) < len(" capital")
    assert tokenizer.encode("a capital")[-len(forced) :] == forced


def test_an_id_outside_the_vocabulary_is_refused_by_number() -> None:
    _, vocabulary, _ = made("byte-level", True)
    with pytest.raises(InvalidArgument, match="77777"):
        vocabulary.prompt([1, 77777])


def test_a_model_without_an_end_has_one_for_grammars_if_it_knows_the_name() -> None:
    tokenizer = Tokenizer(byte_level_json())
    vocabulary = Vocabulary(tokenizer, None, rename=False)
    assert vocabulary.end is None
    assert vocabulary.grammar_end == "<|endoftext|>"


def test_tokens_that_keep_a_name_without_bytes_still_reach_the_model() -> None:
    hf = tokenizers.Tokenizer.from_str(byte_level_json())
    hf.add_special_tokens(["<｜User｜>", "<| a b |>", "<｜end▁of▁sentence｜>"])
    tokenizer = Tokenizer(hf.to_str())
    end = tokenizer.id_of("<｜end▁of▁sentence｜>")
    assert end is not None
    ids = [*tokenizer.encode("<｜User｜>hi<| a b |>"), end]
    for rename in (True, False):
        vocabulary = Vocabulary(tokenizer, end, rename=rename)
        given_away = tokenizers.Tokenizer.from_str(vocabulary.tokenizer_json().decode())
        assert given_away.encode(vocabulary.prompt(ids)).ids == ids
        assert vocabulary.grammar_end is not None
