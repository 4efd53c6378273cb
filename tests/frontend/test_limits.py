from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.admission.limits import Bucket, KeyLimits, KeyMeter, RateLimitExceeded, duration
from dynamo.frontend.config import FrontendConfig
from support.serving import Holding, serving

Steps = st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 30)), min_size=1, max_size=60)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0.1, 100), Steps)
def test_in_any_window_no_more_is_taken_than_the_rate_allows(rate: float, steps: list[tuple[float, float]]) -> None:
    time = Time()
    bucket = Bucket(rate, time)
    taken: list[tuple[float, float]] = []
    for pause, amount in steps:
        time.now += pause
        if not bucket.seconds_until(amount):
            bucket.take(amount)
            taken.append((time.now, amount))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            window = taken[first : last + 1]
            seconds = window[-1][0] - window[0][0]
            excess = max(amount for _, amount in window)
            assert sum(amount for _, amount in window) <= bucket.capacity + rate * seconds + excess + 1e-6
            if all(amount <= bucket.capacity for _, amount in window):
                assert sum(amount for _, amount in window) <= (bucket.capacity + rate * seconds) * (1 + 1e-6)


@given(st.floats(0.1, 100), Steps)
def test_what_is_refused_is_admitted_after_the_time_that_was_named(
    rate: float, steps: list[tuple[float, float]]
) -> None:
    time = Time()
    bucket = Bucket(rate, time)
    for pause, amount in steps:
        time.now += pause
        time.now += bucket.seconds_until(amount)
        assert bucket.seconds_until(amount) == 0
        bucket.take(amount)


def test_a_clock_that_goes_back_refills_nothing_twice() -> None:
    time = Time()
    bucket = Bucket(1, time)
    bucket.take(1)
    time.now = -100
    assert bucket.level == 0
    time.now = -99
    assert bucket.level == 1


def test_each_limit_refuses_by_its_name() -> None:
    time = Time()
    for limits, words in (
        (KeyLimits(requests_per_second=1), "1 requests per second"),
        (KeyLimits(tokens_per_second=10), "10 tokens per second"),
        (KeyLimits(concurrent=1), "run already"),
    ):
        meter = KeyMeter(limits, time)
        meter.admit(10)
        with pytest.raises(RateLimitExceeded, match=words) as refused:
            meter.admit(10)
        assert refused.value.retry_after == 1


def test_tokens_reserved_and_not_used_are_given_back() -> None:
    meter = KeyMeter(KeyLimits(tokens_per_second=100), Time())
    running = meter.admit(100)
    with pytest.raises(RateLimitExceeded):
        meter.check(50)
    running.end(40)
    meter.check(60)
    assert meter.headers() == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "400ms",
    }


def test_an_answer_longer_than_reserved_is_owed() -> None:
    time = Time()
    meter = KeyMeter(KeyLimits(tokens_per_second=10), time)
    meter.admit(1).end(30)
    time.now = 1.9
    with pytest.raises(RateLimitExceeded):
        meter.check()
    time.now = 2.2
    meter.check()


def test_processes_divide_the_limits() -> None:
    whole = KeyLimits(requests_per_second=10, tokens_per_second=100, concurrent=5)
    assert whole.divided(4) == KeyLimits(requests_per_second=2.5, tokens_per_second=25, concurrent=1)
    assert KeyLimits().divided(4) == KeyLimits()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0ms"), (0.02, "20ms"), (1.5, "1.5s"), (360, "6m0s")])
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


KEYS = """
[alice]
key = "of-alice"
concurrent = 1

[bob]
key = "of-bob"
weight = 3
requests_per_second = 1000

[ops]
key = "of-ops"
admin = true
"""


def filed(tmp_path: Path, text: str) -> FrontendConfig:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    return FrontendConfig.from_env({"DYN_API_KEYS_FILE": str(path), "DYN_KEY_CONCURRENT_REQUESTS": "7"})


def test_the_file_of_keys_overrides_the_defaults_per_key(tmp_path: Path) -> None:
    alice, bob, ops = filed(tmp_path, KEYS).keys()
    assert alice.limits == KeyLimits(concurrent=1)
    assert bob.limits == KeyLimits(concurrent=7, requests_per_second=1000)
    assert bob.weight == 3
    assert (ops.admin, ops.limits) == (True, KeyLimits())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\nkey = ''", r"\[a\]"),
        ("[a]\nkey = 'secret'\nconcurent = 1", r"\[a\].*concurent"),
        ("[a]\nkey = 'secret'\nweight = 0", "weight"),
        ("[a]\nkey = 'secret'\n[b]\nkey = 'secret'", "two entries"),
        ("key = secret", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_a_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        filed(tmp_path, text)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_key_over_its_limit_is_refused_and_others_are_not(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, api_keys=("one", "two"), key_concurrent_requests=1) as stack:
        running = asyncio.create_task(stack.chat(headers={"Authorization": "Bearer one"}))
        held = await engine.requests.get()
        refused = await stack.chat(headers={"Authorization": "Bearer one"})
        error = (await refused.json())["error"]
        assert (refused.status, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert refused.headers["Retry-After"] == "1"
        other = asyncio.create_task(stack.chat(headers={"Authorization": "Bearer two"}))
        (await engine.requests.get()).sink.end()
        assert (await other).status == 200
        held.sink.end()
        assert (await running).status == 200
        again = asyncio.create_task(stack.chat(headers={"Authorization": "Bearer one"}))
        (await engine.requests.get()).sink.end()
        assert (await again).status == 200


async def test_answers_of_a_limited_key_say_what_is_left(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("one",), key_requests_per_second=5, key_tokens_per_second=9000) as stack:
        for stream in (False, True):
            answer = await stack.chat(stream=stream, headers={"Authorization": "Bearer one"})
            assert answer.headers["x-ratelimit-limit-requests"] == "5"
            assert int(answer.headers["x-ratelimit-remaining-requests"]) < 5
            assert answer.headers["x-ratelimit-limit-tokens"] == "9000"
            assert answer.headers["x-ratelimit-reset-tokens"]
            await answer.read()
        unlimited = await stack.http.get(f"{stack.url}/v1/models", headers={"Authorization": "Bearer one"})
        assert "x-ratelimit-limit-requests" not in unlimited.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"model": "tiny", "prompt": "a"}),
        ("/detokenize", {"model": "tiny", "tokens": [1]}),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses/input_tokens", {"model": "tiny", "input": "a"}),
    ],
)
async def test_what_only_tokenizes_counts_toward_the_limits_of_its_key(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    async with serving(tmp_path, api_keys=("k",), key_requests_per_second=0.001) as stack:
        headers = {"Authorization": "Bearer k"}
        statuses = [(await stack.http.post(stack.url + path, json=body, headers=headers)).status for _ in range(2)]
        assert statuses == [200, 429]
