"""An index of KV blocks for programs."""

from __future__ import annotations

import json
from threading import Thread
from typing import Any

import pytest

from dynamo.llm import RadixTree


def event(data: Any, dp_rank: int = 0) -> bytes:
    return json.dumps({"event_id": 1, "data": data, "dp_rank": dp_rank}).encode()


def stored(*blocks: tuple[int, int], parent: int | None = None) -> Any:
    return {
        "stored": {
            "parent_hash": parent,
            "blocks": [{"block_hash": block, "tokens_hash": tokens} for block, tokens in blocks],
        }
    }


def test_each_rank_scores_the_leading_blocks_it_holds() -> None:
    tree = RadixTree()
    tree.apply_event(7, event(stored((71, 1), (72, 2), (73, 3))))
    tree.apply_event(8, event(stored((81, 1)), dp_rank=1))
    tree.apply_event(8, event(stored((82, 2), parent=81), dp_rank=1))
    assert tree.find_matches([1, 2, 3, 4]).scores == {(7, 0): 3, (8, 1): 2}
    assert tree.find_matches([2]).scores == {}
    tree.apply_event(7, event({"removed": {"block_hashes": [72]}}))
    assert tree.find_matches([1, 2, 3]).scores == {(7, 0): 1, (8, 1): 2}
    tree.apply_event(7, event("cleared"))
    assert tree.find_matches([1, 2, 3]).scores == {(8, 1): 2}
    tree.remove_worker(8)
    assert tree.dump_tree_as_events() == []


def test_a_dump_stores_the_same_blocks_again() -> None:
    tree, copy = RadixTree(), RadixTree()
    tree.apply_event(1, event(stored((11, 1), (12, 2))))
    tree.apply_event(2, event(stored((21, 1), (23, 3)), dp_rank=1))
    for dumped in map(json.loads, tree.dump_tree_as_events()):
        copy.apply_event(dumped["worker_id"], json.dumps(dumped["event"]).encode())
    for prompt in ([1, 2], [1, 3], [1], [2]):
        assert copy.find_matches(prompt).scores == tree.find_matches(prompt).scores


@pytest.mark.parametrize("wrong", [b"", b"{}", event("lost"), event({"stored": {"blocks": [{}]}})])
def test_a_malformed_event_is_a_value_error(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not a KV cache event"):
        RadixTree().apply_event(1, wrong)


def test_threads_may_share_it() -> None:
    tree = RadixTree()
    threads = [Thread(target=tree.apply_event, args=(n, event(stored((n, n), (n + 100, 5))))) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [tree.find_matches([n, 5]).scores for n in range(32)] == [{(n, 0): 2} for n in range(32)]
