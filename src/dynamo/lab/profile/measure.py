"""Measures an engine with live requests, or fits its times to recorded steps."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import structs

from dynamo.engines.mocker import MockerArgs, ProfileTiming
from dynamo.engines.mocker.profile import About, Profile
from dynamo.lab.profile.fit_profile import fit_decode, profile_from
from dynamo.lab.profile.fit_steps import fit_steps, read_steps
from dynamo.lab.profile.remote_engine import ProfileError, RemoteEngine

_LENGTHS = 7
SHORTEST = 32
_STEP_TOKENS = 2048
"""What one step is taken to compute at least, where the server does not say."""
_ENGINE = {
    "model_kv_cache_block_size": "block_size",
    "model_total_kv_blocks": "num_gpu_blocks",
    "model_max_num_seqs": "max_num_seqs",
    "model_max_num_batched_tokens": "max_num_batched_tokens",
}
"""Gauges of a frontend, and what the mocker calls them."""


def from_steps(files: Sequence[Path], model: str) -> Profile:
    fitted = fit_steps([step for file in files for step in read_steps(file)], model)
    for kind, error in fitted.errors.items():
        print(f"{kind} steps that were not used for the fit are predicted with a mean error of {100 * error:.1f} %")
    return fitted.profile


async def measure(url: str, model: str | None, longest: int, most: int) -> Profile:
    limits = aiohttp.ClientTimeout(total=600, sock_connect=10)
    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as http:
        name = await _model(http, url, model)
        args = await _engine_args(http, url, name)
        engine = RemoteEngine(http, url, name, longest, args.get("max_num_batched_tokens", _STEP_TOKENS))
        await engine.prefill(SHORTEST)  # connections, caches and compilers are warm afterwards
        profile = await fit_engine(engine, longest, most, args)
        await _check(engine, profile, longest, most)
        return profile


async def fit_engine(engine: RemoteEngine, longest: int, most: int, args: dict[str, Any]) -> Profile:
    prefill, decode = [], []
    for step in range(_LENGTHS):
        tokens = round(SHORTEST * (engine.step_tokens / SHORTEST) ** (step / (_LENGTHS - 1)))
        prefill.append(await engine.prefill(tokens))
        _say(f"first token of a prompt of {tokens:,} tokens: {prefill[-1].milliseconds:.1f} ms")
    frontend = await _frontend_ms(engine)
    steps = [structs.replace(one, milliseconds=max(0.05, one.milliseconds - frontend)) for one in prefill]
    for requests in sorted({1, max(2, most // 4), most}):
        for tokens in (longest // 16, longest // 2):
            seen = await engine.decode(requests, max(SHORTEST, tokens))
            _say(f"{requests} requests of {seen.context:,.0f} tokens: {seen.milliseconds:.1f} ms per token")
            decode.append(seen)
    fit = fit_decode(decode)
    alone = ProfileTiming(profile_from(steps, fit, longest + engine.step_tokens, most), MockerArgs())
    shared, waited = [], []
    for tokens, requests in ((engine.step_tokens // 8, most // 4), (engine.step_tokens // 3, most // 2)):
        mixed = await engine.mixed(max(SHORTEST, tokens), max(1, requests), longest // 8)
        shared.append(1000 * alone.prefill(mixed.tokens) + mixed.decode_ms - mixed.step_ms)
        waited.append(mixed.waited_steps(frontend))
        _say(
            f"a prompt of {mixed.tokens:,} tokens beside {mixed.requests} requests: {mixed.step_ms:.1f} ms instead of "
            f"{mixed.decode_ms:.1f} ms between their tokens, after waiting for {waited[-1]:.1f} steps"
        )
    about = About(
        model=engine.model,
        shared_ms=max(0.0, statistics.fmean(shared)),
        frontend_ms=frontend,
        engine=args | {"async_scheduling": statistics.fmean(waited) > 1.0, "watermark": 0.0},
    )
    _say(f"what only the first of several in a step costs: {about.shared_ms:.1f} ms; scheduled ahead: "
         f"{'yes' if about.engine['async_scheduling'] else 'no'}")  # fmt: skip
    return profile_from(steps, fit, longest + engine.step_tokens, most, about)


async def _frontend_ms(engine: RemoteEngine) -> float:
    """What is left of the time to the first token without the step that computes the prompt."""
    rest = []
    for share in (8, 3):
        tokens = max(SHORTEST, engine.step_tokens // share)
        step = await engine.prefill_step(tokens)
        if step is not None:
            rest.append(max(0.0, (await engine.prefill(tokens)).milliseconds - step))
            _say(f"the step of a prompt of {tokens:,} tokens: {step:.1f} ms, the way there and back {rest[-1]:.1f} ms")
    return statistics.fmean(rest) if rest else 0.0


async def _check(engine: RemoteEngine, profile: Profile, longest: int, most: int) -> None:
    """How well the profile predicts requests that it was not made from."""
    timing, about = ProfileTiming(profile, MockerArgs()), profile.about
    frontend = about.frontend_ms or 0.0
    errors: dict[str, list[float]] = {"first token": [], "decode step": [], "first token beside others": []}
    for share in (0.1, 0.3, 0.7):
        found = await engine.prefill(max(SHORTEST, round(share * engine.step_tokens)))
        errors["first token"].append((frontend + 1000 * timing.prefill(found.tokens)) / found.milliseconds - 1)
    for requests in {max(1, most // 2), max(1, most // 3)}:
        seen = await engine.decode(requests, longest // 4)
        predicted = 1000 * timing.decode(seen.requests, round(seen.requests * seen.context))
        errors["decode step"].append(predicted / seen.milliseconds - 1)
    waits = 1.5 if about.engine["async_scheduling"] else 0.5
    for tokens, requests in ((engine.step_tokens // 5, most // 3), (engine.step_tokens // 2, most // 5)):
        mixed = await engine.mixed(max(SHORTEST, tokens), max(1, requests), longest // 6)
        context = mixed.requests * longest // 6
        step = 1000 * timing.mixed(mixed.tokens, mixed.requests, context)
        waited = waits * 1000 * timing.decode(mixed.requests, context)
        errors["first token beside others"].append((frontend + waited + step) / mixed.ttft_ms - 1)
    for name, values in errors.items():
        shown = ", ".join(f"{100 * value:+.1f} %" for value in values)
        print(f"times of {engine.model} that were not used for the fit are predicted with errors of {shown} ({name})")


async def _engine_args(http: aiohttp.ClientSession, url: str, model: str) -> dict[str, Any]:
    """What the server's metrics say about the engine; nothing if it has none."""
    async with http.get(f"{url}/metrics") as response:
        text = await response.text() if response.status == 200 else ""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        known = _ENGINE.get(name.removeprefix("dynamo_frontend_"))
        if known and f'model="{model}"' in rest:
            found[known] = int(float(rest.rpartition(" ")[2]))
    return found


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
