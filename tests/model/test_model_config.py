from __future__ import annotations

from typing import Any

import pytest

from dynamo.model.config import context_length, eos_token_ids, sampling_defaults, special_tokens
from dynamo.model.tokenizer import Tokenizer
from dynamo.protocols.engine import SamplingOptions
from support import models


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(models.byte_level_json())


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "length"),
    [
        ({"max_position_embeddings": 100}, {"model_max_length": 50}, 100),
        ({"text_config": {"max_position_embeddings": 100}}, {}, 100),
        ({"n_positions": 1024}, {}, 1024),
        ({}, {"model_max_length": 50}, 50),
        ({}, {"model_max_length": 1e30}, None),
        ({}, {"model_max_length": 1000000000000000019884624838656}, None),
        ({"max_position_embeddings": None}, {}, None),
        ({"max_position_embeddings": 0, "text_config": "x"}, {"model_max_length": -1}, None),
        ({"max_position_embeddings": True}, {"model_max_length": float("nan")}, None),
    ],
)
def test_the_context_length_is_found(config: Any, tokenizer_config: Any, length: int | None) -> None:
    assert context_length(config, tokenizer_config) == length


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer_config", "special_map", "ids"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, {}, {}, [5, 6]),
        ({}, {"eos_token_id": 7}, {}, {}, [7]),
        ({}, {"text_config": {"eos_token_id": 8}}, {}, {}, [8]),
        ({}, {}, {"eos_token": "<|im_end|>"}, {"eos_token": "<|endoftext|>"}, [2]),
        ({}, {}, {"eos_token": {"content": "<|im_end|>"}}, {}, [2]),
        ({}, {}, {"eos_token": None}, {"eos_token": "<|endoftext|>"}, [0]),
        ({"eos_token_id": 5}, {}, {"eos_token": "<|im_end|>"}, {}, [5, 2]),
        ({"eos_token_id": 2}, {}, {"eos_token": "<|im_end|>"}, {}, [2]),
        ({"eos_token_id": [None, -1, True, 9]}, {}, {}, {}, [9]),
    ],
)
def test_the_first_file_that_names_an_end_token_decides(
    generation: Any, config: Any, tokenizer_config: Any, special_map: Any, ids: list[int], tokenizer: Tokenizer
) -> None:
    assert eos_token_ids(generation, config, tokenizer_config, special_map, tokenizer) == ids


@pytest.mark.parametrize("tokenizer_config", [{}, {"eos_token": "no such token"}, {"eos_token": 3}])
def test_a_model_may_be_without_an_end_token(tokenizer_config: Any, tokenizer: Tokenizer) -> None:
    assert eos_token_ids({"eos_token_id": "x"}, {}, tokenizer_config, {}, tokenizer) == []


def test_the_authors_sampling_is_the_default() -> None:
    given = {"temperature": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.1, "max_length": 5}
    expected = SamplingOptions(temperature=1.0, top_p=0.9, top_k=20, min_p=0.0, repetition_penalty=1.1)
    assert sampling_defaults(given) == expected
    assert sampling_defaults({"do_sample": True, **given}) == expected


def test_a_model_that_should_not_sample_has_no_sampling_defaults() -> None:
    assert sampling_defaults({"do_sample": False, "temperature": 0.6}) == SamplingOptions()


def test_invalid_sampling_defaults_are_ignored() -> None:
    given = {"temperature": "hot", "top_p": 7, "top_k": 0, "min_p": None, "repetition_penalty": float("nan")}
    assert sampling_defaults(given) == SamplingOptions()


def test_special_tokens_are_known_to_templates_by_name() -> None:
    found = special_tokens(
        {"bos_token": "<a>", "add_bos_token": True, "unk_token": None}, {"pad_token": {"content": "p"}}
    )
    assert found == {"bos_token": "<a>", "pad_token": "p"}
