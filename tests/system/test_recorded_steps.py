"""From the recorded steps of a mocker under load to a simulation that knows its times."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.profile.command import main as profile
from dynamo.simulate import SimulationConfig, Synthetic, simulate
from support.models import byte_level_model
from support.stack import Stack

SPEED = 4
SIZES = (20, 60, 200, 500, 1200)


async def test_a_profile_of_recorded_steps_stands_for_the_mocker(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = byte_level_model(tmp_path / "model")
    flags = ("--model-path", str(model), "--model-name", "m", "--speedup-ratio", str(SPEED), "--fpm-trace")
    recorded = {"DYN_FPM_MODE": "full", "DYN_FPM_OUTPUT_PATH": str(tmp_path / "steps")}
    mocker = await stack.python("-m", "dynamo.mocker", *flags, **recorded)
    frontend = await stack.frontend()
    await frontend.until_models("m")
    draw = random.Random(5)

    async with aiohttp.ClientSession() as http:

        async def user() -> None:
            for _ in range(12):
                prompt = [draw.randrange(200, 250) for _ in range(draw.choice(SIZES))]
                body = {"model": "m", "prompt": prompt, "max_tokens": draw.randrange(2, 30), "ignore_eos": True}
                async with http.post(f"{frontend.url}/v1/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()

        await user()
        await asyncio.gather(*[user() for _ in range(8)])
    mocker.signal(signal.SIGTERM)  # what was not written yet, is then
    assert await mocker.ended() == 0

    (steps,) = tmp_path.glob("steps.*.000000.jsonl.gz")
    file = tmp_path / "profile.npz"
    await asyncio.to_thread(profile, [str(steps), "--output", str(file)])
    printed = capsys.readouterr().out
    errors = {kind: float(share) for kind, share in re.findall(r"(\w+) steps .* mean error of ([\d.]+) %", printed)}
    assert errors.keys() == {"prefill", "decode", "mixed"}
    assert max(errors.values()) < 5, printed

    def traffic() -> Synthetic:
        return Synthetic(requests=200, input_tokens=800, output_tokens=20, interval=0.02, seed=1)

    curves, table = MockerArgs(speedup_ratio=SPEED), MockerArgs(planner_profile_data=str(file))
    own = await asyncio.to_thread(simulate, SimulationConfig(engine=curves), traffic)
    profiled = await asyncio.to_thread(simulate, SimulationConfig(engine=table), traffic)
    assert own.ttft_ms is not None
    assert profiled.ttft_ms is not None
    assert profiled.ttft_ms.mean == pytest.approx(own.ttft_ms.mean, rel=0.1)
    assert profiled.ttft_ms.p99 == pytest.approx(own.ttft_ms.p99, rel=0.15)
