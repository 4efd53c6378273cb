"""Changes of a document as merge patches."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.fleet import apply_merge_patch, merge_patch

LEAVES = st.integers() | st.booleans() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
KEYS = st.sampled_from("abcd")
DOCUMENTS = st.dictionaries(KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner), max_leaves=8))


@given(DOCUMENTS, DOCUMENTS)
def test_a_document_with_its_patch_is_the_next_document(before: dict[str, Any], after: dict[str, Any]) -> None:
    document = copy.deepcopy(before)
    apply_merge_patch(document, merge_patch(before, after))
    assert document == after


@given(DOCUMENTS)
def test_equal_documents_have_an_empty_patch(document: dict[str, Any]) -> None:
    assert merge_patch(document, copy.deepcopy(document)) == {}


def test_a_patch_holds_only_what_changed() -> None:
    before = {"workers": {"1/0": {"requests": 1, "health": "ready"}, "2/0": {"requests": 0}}}
    after = {"workers": {"1/0": {"requests": 2, "health": "ready"}}}
    assert merge_patch(before, after) == {"workers": {"1/0": {"requests": 2}, "2/0": None}}
