from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.names import EndpointId, card_key, instance_key, new_instance_id, split_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dyn://test", EndpointId("dynamo", "test", "generate")),
        ("dyn://llama3B_pool", EndpointId("dynamo", "llama3B_pool", "generate")),
        ("dyn://llama3B.backend.generate", EndpointId("llama3B", "backend", "generate")),
        ("dyn://qwen3-32b.backend", EndpointId("qwen3-32b", "backend", "generate")),
        ("ns/comp/ep", EndpointId("ns", "comp", "ep")),
        ("dyn://a.b.c.d", EndpointId("a", "b", "c_d")),
        ("dyn://", EndpointId()),
    ],
)
def test_missing_parts_are_defaulted(text: str, expected: EndpointId) -> None:
    assert EndpointId.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "part"), [("dyn://a b.c.d", "namespace"), ("dyn://a.c$.d", "component"), ("a.b.ç", "endpoint")]
)
def test_an_invalid_character_names_the_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        EndpointId.parse(text)


@pytest.mark.parametrize("text", ["a.b", "a.b.c.d", "", "dyn://x"])
def test_an_exact_name_needs_all_three_parts(text: str) -> None:
    with pytest.raises(ValueError, match=r"namespace\.component\.endpoint"):
        EndpointId.exact(text)


@given(st.text(max_size=40))
def test_parsing_any_text_gives_a_name_or_a_value_error(text: str) -> None:
    try:
        parsed = EndpointId.parse(text)
    except ValueError:
        return
    assert EndpointId.parse(str(parsed)) == parsed


@given(st.text(max_size=60))
def test_a_key_is_read_back_or_refused(key: str) -> None:
    try:
        split_key(key)
    except ValueError:
        pass
    endpoint = EndpointId("a", "b", "c")
    assert split_key(instance_key(endpoint, 255)) == split_key(card_key(endpoint, 255)) == (endpoint, 255)


def test_instance_ids_are_unique_and_fit_in_64_bits() -> None:
    ids = {new_instance_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    assert all(0 < id < 2**63 for id in ids)
