"""The scheduler over the plainest decoder: all requests end, whatever the cache and llama.cpp have room for."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.engines.llamacpp.blocks import BlockMap
from dynamo.engines.llamacpp.decoder import DECODED, NO_ROOM, LlamaDecoder
from dynamo.engines.llamacpp.job import Job
from dynamo.engines.llamacpp.scheduler import LlamaScheduler
from dynamo.kv.block_names import BlockNames
from dynamo.protocols.engine import EngineOutput
from dynamo.runtime.stream import Sink
from engines.llamacpp.test_blocks import Cells, replay
from support.asking import asking

VOCAB = 8


class PlainDecoder(Cells):
    """Keeps cells as llama.cpp does; `room` is what it really has. The next token is always 1."""

    rewinds = True

    def __init__(self, batch: int, room: int) -> None:
        super().__init__()
        self.room = room
        self.computed = 0
        self.refused = 0
        self.token, self.position, self.sequence = (np.zeros(batch, np.int32) for _ in range(3))
        self.wanted = np.zeros(batch, np.int8)

    def decode(self, count: int) -> int:
        if self.used + count > self.room:
            self.refused += 1
            return NO_ROOM
        for sequence, position in zip(self.sequence[:count].tolist(), self.position[:count].tolist(), strict=True):
            assert len(self.sequences.get(sequence, ())) == position
            self.compute(sequence, 1)
        self.computed += count
        self.count = count
        return DECODED

    def logits(self, rows: int) -> Any:
        assert rows == self.wanted[: self.count].sum()
        result = np.zeros((rows, VOCAB), np.float32)
        result[:, 1] = 1
        return result


def job(prompt: list[int], size: int, **options: Any) -> Job:
    request, names = asking(prompt, ignore_eos=True, **options), BlockNames(size, b"secret")
    return Job(request, cast(Sink, None), context_length=24, vocab_size=VOCAB, names=names)


def scheduler(decoder: PlainDecoder, *, cells: int, batch: int, size: int, seqs: int) -> LlamaScheduler:
    blocks = BlockMap(decoder, cells, seqs + 2, size, prefixes=4)
    return LlamaScheduler(cast(LlamaDecoder, decoder), blocks, max_num_seqs=seqs, n_batch=batch)


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=20),
        st.integers(1, 24),
        st.sampled_from([None, None, 1]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=400, deadline=None)
@given(REQUESTS, st.integers(24, 40), st.integers(0, 12), st.integers(6, 24), st.integers(1, 5), st.integers(1, 4))
def test_every_request_ends_with_all_its_tokens(
    requests: list[tuple[list[int], int, int | None]], cells: int, missing: int, batch: int, size: int, seqs: int
) -> None:
    decoder = PlainDecoder(batch, max(24, cells - missing))
    scheduling = scheduler(decoder, cells=cells, batch=batch, size=size, seqs=seqs)
    jobs = [job(prompt, size, max_tokens=most, prompt_logprobs=count) for prompt, most, count in requests]
    for each in jobs:
        scheduling.add(each)
    ended: list[Job] = []
    scored: dict[Job, int] = {}
    known: set[int] = set()
    # A prompt takes its chunks, an answer its tokens, and a request may begin again whenever an older one ends.
    most = sum(each.max_tokens + len(each.tokens) for each in jobs) * 2 * (len(jobs) + 1)
    for _ in range(most):
        if not scheduling.busy:
            break
        for each, output in scheduling.step():
            if not isinstance(output, int):
                assert isinstance(output, EngineOutput)
                if output.prompt_logprobs is not None:
                    scored[each] = len(output.prompt_logprobs)
                if output.finish_reason is not None:
                    assert output.finish_reason == "length"
                    ended.append(each)
        scheduling.blocks.check()
        assert scheduling.blocks.used >= decoder.used
        replay(known, scheduling.blocks.take_events())
        assert known == scheduling.blocks.hashes()
    assert set(ended) == set(jobs)
    asked = [each for each, (_, _, count) in zip(jobs, requests, strict=True) if count is not None]
    assert scored == {each: each.prompt_tokens for each in asked}
    assert not decoder.refused or decoder.room < cells, "the books promised room that is not there"
    assert all(each.generated == each.max_tokens for each in jobs)


def test_requests_that_arrive_together_compute_their_common_prefix_once() -> None:
    decoder = PlainDecoder(64, 200)
    scheduling = scheduler(decoder, cells=200, batch=64, size=4, seqs=4)
    jobs = [job([0, 1] * 8 + [end], 4, max_tokens=2) for end in (2, 3, 4)]
    for each in jobs:
        scheduling.add(each)
    while scheduling.busy:
        scheduling.step()
    assert [each.cached_tokens for each in jobs] == [0, 16, 16]
    assert decoder.computed == 17 + 1 + 1 + 3


def test_a_request_that_cannot_be_sampled_fails_alone(caplog: Any) -> None:
    decoder = PlainDecoder(64, 200)
    scheduling = scheduler(decoder, cells=200, batch=64, size=4, seqs=4)
    broken, fine = job([0, 1], 4, max_tokens=3, min_tokens=2), job([1, 0], 4, max_tokens=3)
    broken.ends = frozenset([VOCAB])
    scheduling.add(broken)
    scheduling.add(fine)
    outputs: dict[Job, Any] = {}
    while scheduling.busy:
        outputs |= dict(scheduling.step())
    assert isinstance(outputs[broken], Exception)
    assert outputs[fine].finish_reason == "length"
    assert "sampling failed" in caplog.text


def test_each_step_says_what_it_computed_and_what_waited() -> None:
    scheduling = scheduler(PlainDecoder(8, 200), cells=200, batch=8, size=4, seqs=2)
    first, second, third = job([0] * 12, 4, max_tokens=3), job([1, 0], 4, max_tokens=2), job([1, 1, 0], 4, max_tokens=1)
    steps: list[Any] = []
    scheduling.on_step = lambda rank, seconds, scheduled, queued: steps.append((rank, seconds, scheduled, queued))
    for each in (first, second, third):
        scheduling.add(each)
    while scheduling.busy:
        scheduling.step()
    scheduled = [step[2] for step in steps]
    # A chunk of the first prompt; its rest and the second prompt; both decode; the third prompt beside the first.
    assert [(one.num_prefill_requests, one.sum_prefill_tokens, one.sum_prefill_kv_tokens) for one in scheduled] == [
        (1, 8, 0), (2, 6, 8), (0, 0, 0), (1, 3, 0),
    ]  # fmt: skip
    assert [one.var_prefill_length for one in scheduled] == [0.0, 25.0, 0.0, 0.0]
    assert [(one.num_decode_requests, one.sum_decode_kv_tokens) for one in scheduled] == [
        (0, 0), (0, 0), (2, 13 + 3), (1, 14),
    ]  # fmt: skip
    queued = [step[3] for step in steps]
    assert [(one.num_prefill_requests, one.sum_prefill_tokens) for one in queued] == [(2, 5), (1, 3), (1, 3), (0, 0)]
    assert all(rank == 0 and seconds > 0 for rank, seconds, _, _ in steps)


def test_a_preempted_request_waits_with_its_answer_and_a_step_without_room_is_not_reported() -> None:
    scheduling = scheduler(PlainDecoder(32, 24), cells=40, batch=32, size=4, seqs=2)
    jobs = [job([0] * 8, 4, max_tokens=8), job([1] * 8, 4, max_tokens=8)]
    steps: list[Any] = []
    scheduling.on_step = lambda rank, seconds, scheduled, queued: steps.append((scheduled, queued))
    for each in jobs:
        scheduling.add(each)
    while scheduling.busy:
        scheduling.step()
    assert scheduling.preemptions
    assert max(queued.num_decode_requests for _, queued in steps) == 1
    assert max(queued.sum_decode_kv_tokens for _, queued in steps) > 8
    computed = sum(scheduled.sum_prefill_tokens + scheduled.num_decode_requests for scheduled, _ in steps)
    assert computed == cast(PlainDecoder, scheduling._decoder).computed
