"""Measures the engine behind an OpenAI-compatible server with requests of its own, from outside.

The time to the first token of a request has parts that no single request can tell apart: the way to the engine and
back, steps that were under way, and the step that computes the prompt. Requests that meet each other can: two prompts
in a row show the step alone, and a prompt among requests that decode shows what it costs them and what it waits for.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import aiohttp
import msgspec
from msgspec import Struct

from dynamo.lab.profile.fit_profile import DecodeTime, MixedTime, PrefillTime

_REPEATS = range(3, 16)
"""How often a measurement is repeated, until `_ENOUGH` seconds are spent."""
_ENOUGH = 1.0
_TOKENS = 48
"""Output tokens of a request that measures decoding."""
_PROBES = 8
"""Prompts sent while requests decode, one after the other."""
_IDS = range(100, 500)
"""Token ids that every vocabulary has."""


class ProfileError(Exception):
    """Its message is for the user."""


class _ReportedUsage(Struct):
    completion_tokens: int = 0


class _StreamEvent(Struct):
    usage: _ReportedUsage | None = None
    error: object = None
    choices: list[object] = []


class RemoteEngine:
    """Sends prompts of token ids to /v1/completions and measures when their tokens come."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str, longest: int, step_tokens: int) -> None:
        self._http, self._url, self.model = http, url, model
        self._longest = longest
        self.step_tokens = min(longest, step_tokens)
        """The longest prompt that one step computes as a whole."""
        self._random = random.Random()
        self._decode_event = msgspec.json.Decoder(_StreamEvent).decode

    async def token_times(self, prompt: int | list[int], answer: int, seen: list[float] | None = None) -> list[float]:
        """When each token came, by `clock`, in `seen` as they come.

        Instead of token ids a number may be given: of tokens of a prompt that begins like no other.
        """
        times = [] if seen is None else seen
        ids = self._random.choices(_IDS, k=prompt) if isinstance(prompt, int) else prompt
        body = {"model": self.model, "prompt": ids, "max_tokens": answer,
                "min_tokens": answer, "ignore_eos": True, "stream": True, "temperature": 1.0,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # fmt: skip
        data, headers = msgspec.json.encode(body), {"Content-Type": "application/json"}
        async with self._http.post(f"{self._url}/v1/completions", data=data, headers=headers) as response:
            if response.status != 200:
                raise ProfileError(f"{self._url} answers {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self._read(line[6:], times)
        if not times:
            raise ProfileError(f"{self._url} answers without any token")
        return times

    def _read(self, data: bytes, times: list[float]) -> None:
        now = self.clock()
        event = self._decode_event(data)
        if event.error is not None:
            raise ProfileError(f"{self._url} answers {data[:300].decode(errors='replace')}")
        # A token may have no text of its own, and two may come together: servers that count them are believed.
        new = event.usage.completion_tokens - len(times) if event.usage else bool(event.choices)
        times += [now] * new

    async def first_token(self, tokens: int) -> float:
        """Milliseconds to the first token of a prompt that has the server for itself."""
        sent = self.clock()
        return 1000 * ((await self.token_times(tokens, 1))[0] - sent)

    async def prefill(self, tokens: int) -> PrefillTime:
        begun, times = self.clock(), list[float]()
        while len(times) < _REPEATS.start or (len(times) < _REPEATS.stop and self.clock() - begun < _ENOUGH):
            times.append(await self.first_token(tokens))
        return PrefillTime(tokens, statistics.median(times))

    async def prefill_step(self, tokens: int) -> float | None:
        """Milliseconds of the step that computes a prompt, without the way there and back; None if it cannot be seen.

        The prompt is sent while another one is computed: its first token comes one step after the other's.
        """
        alone = (await self.prefill(self.step_tokens)).milliseconds / 1000
        gaps = []
        for _ in range(_REPEATS.stop // 2):
            before = asyncio.create_task(self.token_times(self.step_tokens, 1))
            await asyncio.sleep(0.3 * alone)
            mine = await self.token_times(tokens, 1)
            gaps.append(1000 * (mine[0] - (await before)[0]))
        step = statistics.median(gaps)
        return step if step > 0 else None

    async def decode(self, requests: int, tokens: int) -> DecodeTime:
        """The median of several times, as the first run of a batch size may be slower than all others."""
        times = [await self._decode_once(requests, tokens) for _ in range(_REPEATS.start)]
        return sorted(times, key=lambda time: time.milliseconds)[len(times) // 2]

    async def _decode_once(self, requests: int, tokens: int) -> DecodeTime:
        """Only the time in which all of them were decoding counts; answers grow until it is long enough."""
        length = _TOKENS
        while True:
            answers = await asyncio.gather(*(self.token_times(tokens, length) for _ in range(requests)))
            since, until = max(times[0] for times in answers), min(times[-1] for times in answers)
            together = [[each for each in times if since <= each <= until] for times in answers]
            if all(len(inside) > _TOKENS // 2 for inside in together):
                steps = [_pace(inside) for inside in together]
                return DecodeTime(requests, tokens + length / 2, 1000 * statistics.fmean(steps))
            length *= 2
            if tokens + length > self._longest:
                raise ProfileError(f"{requests} requests never ran at the same time: try fewer with --max-requests")

    async def mixed(self, tokens: int, requests: int, context: int) -> MixedTime:
        """Measure prompts of `tokens` tokens among requests that decode."""
        answers: list[list[float]] = [[] for _ in range(requests)]
        most = max(_TOKENS, self._longest - context)
        running = [asyncio.create_task(self.token_times(context, most, seen)) for seen in answers]
        probes = []
        try:
            for _ in range(_PROBES):
                await self._all_got(answers, 3, running)
                step = _pace(answers[0][-3:])
                await asyncio.sleep(self._random.random() * step)
                sent = self.clock()
                first = (await self.token_times(tokens, 1))[0]
                probes.append((sent, first))
            await self._all_got(answers, 3, running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return _mixed_time(tokens, answers, probes)

    async def _all_got(
        self, answers: Sequence[list[float]], tokens: int, running: Sequence[asyncio.Task[list[float]]]
    ) -> None:
        """Wait until each request has `tokens` more tokens."""
        before = [len(times) for times in answers]
        while any(len(times) < had + tokens for times, had in zip(answers, before, strict=True)):
            for task in running:
                if task.done():
                    await task
                    raise ProfileError("requests ended before they were measured: try more with --max-tokens")
            await asyncio.sleep(0.001)


def _pace(times: Sequence[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def _mixed_time(tokens: int, answers: Sequence[list[float]], probes: Sequence[tuple[float, float]]) -> MixedTime:
    """The time of a step with a prompt: the longest gap between tokens while the prompt was under way."""
    plain, steps = [], []
    for times in answers:
        gaps = list(pairwise(times))
        for sent, first in probes:
            during = [end - begin for begin, end in gaps if end > sent and begin < first]
            if during:
                steps.append(max(during))
        plain += [
            end - begin
            for begin, end in gaps
            if end > probes[0][0] and all(end < sent or begin > first for sent, first in probes)
        ]
    if not plain or not steps:
        raise ProfileError(f"prompts of {tokens} tokens were not seen among {len(answers)} requests that decode")
    return MixedTime(
        tokens=tokens,
        requests=len(answers),
        decode_ms=1000 * statistics.fmean(plain),
        step_ms=1000 * statistics.median(steps),
        ttft_ms=1000 * statistics.fmean(first - sent for sent, first in probes),
    )
