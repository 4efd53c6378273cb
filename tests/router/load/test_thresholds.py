from __future__ import annotations

from dynamo.kv.messages import ActiveLoad
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.router import Thresholds

CARD = ModelRuntimeConfig(max_num_batched_tokens=1 << 20)
SAID = ActiveLoad(worker_id=1)


def test_a_share_beyond_all_numbers_is_never_exceeded() -> None:
    thresholds = Thresholds(active_prefill_tokens_threshold_frac=1e305)
    assert not thresholds.busy(CARD, SAID, prefill_tokens=1e9)
