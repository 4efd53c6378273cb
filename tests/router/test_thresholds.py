from __future__ import annotations

from dynamo.router import Thresholds


def test_a_share_beyond_all_numbers_is_never_exceeded() -> None:
    thresholds = Thresholds(active_prefill_tokens_threshold_frac=1e305)
    assert not thresholds.busy(prefill_tokens=10**9, used_blocks=0, total_blocks=None, batch_tokens=1 << 20)
