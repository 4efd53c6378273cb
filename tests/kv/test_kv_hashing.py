from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.hashing import PromptHashes, local_hashes, prompt_hashes, salt_seed, sequence_hashes
from dynamo.protocols.errors import InvalidArgument

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_published_vectors_come_out() -> None:
    tokens = list(range(1, 13))
    local = local_hashes(tokens, 4)
    assert local == [14643705804678351452, 16777012769546811212, 483935686894639516]
    assert sequence_hashes(local) == [14643705804678351452, 4945711292740353085, 12583592247330656132]
    assert prompt_hashes(tokens, 4) == sequence_hashes(local)


@pytest.mark.parametrize(
    ("lora", "salt", "expected"),
    [
        (None, None, 14643705804678351452),
        ("", "", 14643705804678351452),
        ("my-lora", None, 15671544057904749233),
        (None, "tenant-a", 5738685477468498325),
        ("my-lora", "tenant-a", 6157910915076630503),
    ],
)
def test_adapter_and_tenant_change_the_seed(lora: str | None, salt: str | None, expected: int) -> None:
    assert local_hashes([1, 2, 3, 4], 4, salt_seed(lora, salt)) == [expected]
    assert prompt_hashes([1, 2, 3, 4], 4, lora_name=lora, cache_salt=salt) == [expected]


@given(TOKENS, st.integers(1, 9))
def test_only_complete_blocks_are_hashed(tokens: list[int], block_size: int) -> None:
    local = local_hashes(tokens, block_size)
    assert len(local) == len(tokens) // block_size
    for at, value in enumerate(local):
        block = tokens[at * block_size : (at + 1) * block_size]
        assert value == xxhash.xxh3_64_intdigest(b"".join(t.to_bytes(4, "little") for t in block), 1337)


@given(TOKENS, st.integers(0, 10), st.integers(1, 4))
def test_a_chain_can_be_continued_from_any_block(tokens: list[int], cut: int, block_size: int) -> None:
    local = local_hashes(tokens, block_size)
    whole = sequence_hashes(local)
    head = sequence_hashes(local[:cut])
    assert head + sequence_hashes(local[cut:], head[-1] if head else None) == whole


@given(TOKENS, st.integers(1, 4))
def test_with_eagle_a_block_also_covers_the_token_after_it(tokens: list[int], block_size: int) -> None:
    local = local_hashes(tokens, block_size, eagle=True)
    assert len(local) == max(0, len(tokens) - 1) // block_size
    for at, value in enumerate(local):
        window = tokens[at * block_size : (at + 1) * block_size + 1]
        assert [value] == local_hashes(window, block_size + 1)


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "7", None])
def test_a_token_that_is_no_u32_is_named(bad: object) -> None:
    with pytest.raises(InvalidArgument, match=r"token 2 is .*, not an integer in 0\.\.2\^32-1"):
        local_hashes([1, 2, bad, 4], 2)  # type: ignore[list-item]


def test_a_block_size_below_one_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="block size must be at least 1, not 0"):
        local_hashes([1], 0)


@given(
    prompts=st.lists(st.lists(st.sampled_from([7, 8]), max_size=40), max_size=8),
    salts=st.lists(st.sampled_from([None, "a"]), min_size=8, max_size=8),
    block_size=st.integers(1, 5),
    remembered=st.integers(1, 6),
)
def test_what_is_remembered_of_earlier_prompts_changes_no_hash(
    prompts: list[list[int]], salts: list[str | None], block_size: int, remembered: int
) -> None:
    hashes = PromptHashes(block_size, stretch_tokens=8, remembered=remembered)
    for tokens, salt in zip(prompts, salts, strict=False):
        assert hashes.of(tokens, cache_salt=salt) == prompt_hashes(tokens, block_size, cache_salt=salt)
        assert len(hashes._known) <= remembered


def test_a_prompt_with_a_token_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="token 1 is -1"):
        PromptHashes(4).of([1, -1])
