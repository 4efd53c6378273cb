from __future__ import annotations

from typing import Any

import pytest

from dynamo.kv.prompt_cost import estimate_tokens


@pytest.mark.parametrize(
    ("request_body", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 399}]}, 100),
        ({"messages": [{"content": [{"type": "text", "text": "x" * 399}, {"type": "image_url"}]}]}, 100),
        ({"prompt": ["x" * 399, "x" * 399]}, 200),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2, 3], [4]]}, 4),
        ({"input": "x" * 399}, 100),
        ({"input": ["x" * 399, "y" * 3]}, 101),
        ({"model": "m", "token_ids": [5] * 1000, "dimensions": None}, 1000),
        ({"model": "m"}, 0),
        (None, 0),
    ],
)
def test_text_counts_a_quarter_of_its_characters_and_tokens_one_each(request_body: Any, tokens: int) -> None:
    assert estimate_tokens(request_body) == tokens


def test_depth_does_no_harm() -> None:
    nested: Any = "x" * 399
    for _ in range(100_000):
        nested = {"content": [nested]}
    assert estimate_tokens(nested) == 100
    while isinstance(nested, dict):  # freed piece by piece: the interpreter may not go that deep
        nested = nested["content"][0]
