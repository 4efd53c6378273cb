"""The engine in docs/engines.md, installed as the page says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from support.distribution import install
from support.stack import Stack

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()


def parrot(folder: Path) -> str:
    (code,) = re.findall(r"```python\n(# parrot\.py\n.*?)```", PAGE, re.DOTALL)
    (points,) = re.findall(r'```toml\n\[project.entry-points."dynamo.engines"\]\n(.*?)```', PAGE, re.DOTALL)
    return install(folder, "parrot", {"parrot.py": code}, points.replace('"', ""))


async def test_the_engine_of_the_guide_answers_as_a_worker(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"PYTHONPATH": parrot(tmp_path / "site"), "DYN_TCP_RPC_HOST": "127.0.0.1"}) as stack:
        worker = await stack.python("-m", "dynamo.worker", "parrot", "tiny", "--pause", "0.001")
        await worker.line("worker for 'tiny' at ")
        frontend = await stack.frontend()
        await frontend.until_models("tiny")
        answer = await frontend.client.completions.create(model="tiny", prompt="say it again", max_tokens=50)
        assert answer.choices[0].text.strip() == "say it again"
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0


async def test_the_engine_of_the_guide_refuses_a_flag_that_it_does_not_know(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"PYTHONPATH": parrot(tmp_path / "site")}) as stack:
        worker = await stack.python("-m", "dynamo.worker", "parrot", "tiny", "--volume", "11")
        assert await worker.ended() == 1
        assert "error: parrot: unrecognized arguments: --volume 11" in worker.lines


async def test_an_engine_whose_package_is_missing_says_what_to_install(tmp_path: Path) -> None:
    code = """
from dynamo.worker import EngineEntry

ENTRY = EngineEntry(name="far", factory="far_engine:Far", install="pip install far (needs an NVIDIA GPU)")
"""
    modules = {"far.py": code, "far_engine.py": "import no_such_package"}
    path = install(tmp_path / "site", "far", modules, "far = far:ENTRY")
    async with Stack(tmp_path, {"PYTHONPATH": path}) as stack:
        worker = await stack.python("-m", "dynamo.worker", "far", "--model", "org/not-fetched")
        assert await worker.ended() == 1
        assert worker.lines[0] == (
            "error: cannot load the engine 'far': No module named 'no_such_package'; "
            "pip install far (needs an NVIDIA GPU)"
        )
