"""`dynamo profile URL`: measure the engine behind a server with live requests, for simulations of it."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from dynamo.engines.mocker import MockerArgs, ProfileTiming
from dynamo.engines.mocker.fit_profile import DecodeTime, PrefillTime, fit_decode, profile_from, write_profile
from dynamo.engines.mocker.profile import Profile
from dynamo.runtime.process import fail

_LENGTHS = 7
_REPEATS = 3
_TOKENS = 48
"""Output tokens of a request that measures decoding."""
_IDS = range(100, 500)
"""Token ids that every vocabulary has."""
_SHORTEST = 32


class ProfileError(Exception):
    """Its message is for the user."""


class ServedEngine:
    """Sends prompts of token ids to /v1/completions and measures when their tokens come."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str) -> None:
        self._http, self._url, self.model = http, url, model
        self._random = random.Random()

    async def token_times(self, tokens: int, answer: int) -> list[float]:
        """Seconds after sending at which each event with text came. No other prompt begins like this one."""
        body = {"model": self.model, "prompt": self._random.choices(_IDS, k=tokens), "max_tokens": answer,
                "min_tokens": answer, "ignore_eos": True, "stream": True, "temperature": 1.0}  # fmt: skip
        begun, times = time.perf_counter(), []
        async with self._http.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise ProfileError(f"{self._url} answers {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    if b'"error"' in line[:20]:
                        raise ProfileError(f"{self._url} answers {line[6:300].decode(errors='replace')}")
                    times.append(time.perf_counter() - begun)
        if not times:
            raise ProfileError(f"{self._url} answers without any token")
        return times

    async def prefill(self, tokens: int) -> PrefillTime:
        times = [(await self.token_times(tokens, 1))[0] for _ in range(_REPEATS)]
        return PrefillTime(tokens, 1000 * statistics.median(times))

    async def decode(self, requests: int, tokens: int) -> DecodeTime:
        """Only the time in which all of them were decoding counts."""
        begun = time.perf_counter()

        async def ask() -> list[float]:
            sent = time.perf_counter() - begun
            return [sent + each for each in await self.token_times(tokens, _TOKENS)]

        answers = await asyncio.gather(*(ask() for _ in range(requests)))
        since, until = max(times[0] for times in answers), min(times[-1] for times in answers)
        gaps = []
        for times in answers:
            inside = [each for each in times if since <= each <= until]
            if len(inside) > 2:
                gaps.append((inside[-1] - inside[0]) / (len(inside) - 1))
        if not gaps:
            raise ProfileError(f"{requests} requests never ran at the same time: try fewer with --max-requests")
        return DecodeTime(requests, tokens + _TOKENS / 2, 1000 * statistics.fmean(gaps))


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="dynamo profile", description=__doc__)
    parser.add_argument("url", help="an OpenAI-compatible server that takes prompts of token ids")
    parser.add_argument("--model", help="which of its models; needed if it has several")
    parser.add_argument("--output", default="profile.npz", help="the file to write (profile.npz)")
    parser.add_argument("--max-tokens", type=int, default=4096, help="longest prompt that is sent (4096)")
    parser.add_argument("--max-requests", type=int, default=16, help="requests that are decoded at once (16)")
    asked = parser.parse_args(words)
    if asked.max_tokens < 2 * _SHORTEST or asked.max_requests < 2:
        raise fail(f"--max-tokens must be at least {2 * _SHORTEST} and --max-requests at least 2", code=2)
    if not Path(asked.output).resolve().parent.is_dir():
        raise fail(f"the folder of {asked.output} does not exist", code=2)
    url = asked.url if "://" in asked.url else f"http://{asked.url}"
    try:
        profile = asyncio.run(_measure(url.rstrip("/"), asked.model, asked.max_tokens, asked.max_requests))
        write_profile(profile, Path(asked.output))
    except (ProfileError, OSError, aiohttp.ClientError, msgspec.MsgspecError) as error:
        raise fail(f"{error or type(error).__name__}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(f"written to {asked.output}: simulate with --extra-engine-args '{{\"planner_profile_data\": "
          f"\"{asked.output}\"}}' --frontend-ms 0")  # fmt: skip


async def _measure(url: str, model: str | None, longest: int, most: int) -> Profile:
    limits = aiohttp.ClientTimeout(total=600, sock_connect=10)
    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as http:
        engine = ServedEngine(http, url, await _model(http, url, model))
        await engine.prefill(_SHORTEST)  # connections, caches and compilers are warm afterwards
        prefill, decode = [], []
        for step in range(_LENGTHS):
            prefill.append(await engine.prefill(round(_SHORTEST * (longest / _SHORTEST) ** (step / (_LENGTHS - 1)))))
            _say(f"prefill of {prefill[-1].tokens:,} tokens: {prefill[-1].milliseconds:.1f} ms")
        for requests in sorted({1, max(2, most // 4), most}):
            for tokens in (longest // 16, longest // 2):
                seen = await engine.decode(requests, max(_SHORTEST, tokens))
                _say(f"{requests} requests of {seen.context:,.0f} tokens: {seen.milliseconds:.1f} ms per token")
                decode.append(seen)
        fit = fit_decode(decode)
        profile = profile_from(prefill, fit, longest + _TOKENS, most)
        await _check(engine, profile, longest, most)
        return profile


async def _check(engine: ServedEngine, profile: Profile, longest: int, most: int) -> None:
    """How well the profile predicts requests that it was not made from."""
    timing = ProfileTiming(profile, MockerArgs())
    errors: dict[str, list[float]] = {"prefill": [], "decode": []}
    for share in (0.1, 0.3, 0.7):
        found = await engine.prefill(max(_SHORTEST, round(share * longest)))
        errors["prefill"].append(1000 * timing.prefill(found.tokens) / found.milliseconds - 1)
    for requests in {max(1, most // 2), max(1, most // 3)}:
        seen = await engine.decode(requests, longest // 4)
        predicted = 1000 * timing.decode(seen.requests, round(seen.requests * seen.context))
        errors["decode"].append(predicted / seen.milliseconds - 1)
    for name, values in errors.items():
        shown = ", ".join(f"{100 * value:+.1f} %" for value in values)
        print(f"{name} times of {engine.model} that were not used for the fit are predicted with errors of {shown}")


async def _model(http: aiohttp.ClientSession, url: str, asked: str | None) -> str:
    async with http.get(f"{url}/v1/models") as response:
        if response.status != 200:
            raise ProfileError(f"{url}/v1/models answers {response.status}")
        listed: Any = msgspec.json.decode(await response.read())
    try:
        names = [str(each["id"]) for each in listed["data"]]
    except (KeyError, TypeError):
        raise ProfileError(f"{url}/v1/models does not list models as OpenAI's API does") from None
    if asked is None and len(names) == 1:
        return names[0]
    if asked not in names or asked is None:
        raise ProfileError(f"{url} has the models {', '.join(names) or '(none)'}: name one of them with --model")
    return asked


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
