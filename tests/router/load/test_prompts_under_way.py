"""The prompts under way: which tenants may have one sent ahead, and where it would wait least."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.messages import WorkerRank
from dynamo.router.load.prompts import Prompts, SentPrompt

A, B = WORKERS = [WorkerRank(1, 0), WorkerRank(2, 0)]
SENT = st.builds(SentPrompt, st.sampled_from(WORKERS), st.sampled_from(("", "x", "y")), st.just(0.0), st.integers(0, 9))


@given(st.lists(st.tuples(SENT, st.booleans()), max_size=30))
def test_a_tenant_has_room_until_one_of_its_prompts_is_under_way(steps: list[tuple[SentPrompt, bool]]) -> None:
    prompts, under_way = Prompts(), list[SentPrompt]()
    for number, (sent, ends) in enumerate(steps):
        if ends and under_way:
            ended = under_way.pop(number % len(under_way))
            if number % 2:
                prompts.computed(ended, 1.0)
            else:
                prompts.end(ended)
        else:
            prompts.begin(sent)
            under_way.append(sent)
        for tenant in ("x", "y"):
            busy = any(one.tenant == tenant for one in under_way)
            ahead = [sum(one.ahead_tokens for one in under_way if one.worker == worker) for worker in WORKERS]
            room = [worker for worker, tokens in zip(WORKERS, ahead, strict=True) if tokens < 10 and not busy]
            assert prompts.room_ahead(tenant, WORKERS, [10, 10]) == room
        assert not prompts.room_ahead("", WORKERS, [10, 10]), "without keys there is nobody to be fair to"


def test_the_pass_that_began_first_has_least_left() -> None:
    prompts = Prompts()
    assert prompts.pass_left(WORKERS, 0.0) == [1.0, 1.0]
    usual = SentPrompt(A, "flood", 0.0)
    prompts.begin(usual)
    prompts.computed(usual, 10.0)
    prompts.begin(SentPrompt(A, "flood", 20.0))
    prompts.begin(SentPrompt(B, "flood", 24.0))
    assert prompts.pass_left(WORKERS, 28.0) == [1 - 0.8, 1 - 0.4]
    assert prompts.pass_left(WORKERS, 45.0) == [1.0, 1.0], "who knows how long such a pass takes"


def test_a_first_token_begins_the_next_pass() -> None:
    prompts = Prompts()
    first, second = SentPrompt(A, "x", 0.0), SentPrompt(A, "y", 5.0)
    prompts.begin(first)
    prompts.begin(second)
    prompts.computed(first, 10.0)
    assert prompts.pass_left([A], 10.0) == [1.0]
    assert prompts.pass_left([A], 20.0) == [0.0]
