"""Ctrl-C while dynamo-run starts: it leaves at once, whatever it is doing.

Had it waited for a drain that has nothing to drain, or for code that never returns, these tests would run into the
limit of `wait`, which the settings below make the shorter one.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from support.running import running
from support.waiting import PATIENCE

NEVER_DRAINED: Any = {"DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": str(10 * PATIENCE)}
GENERATE = "async def generate(request):\n    yield {}\n"
LOADS = {
    "async that blocks": f"import time\nasync def initialize(args):\n    time.sleep({10 * PATIENCE})\n",
    "that blocks": f"import time\ndef initialize(args):\n    time.sleep({10 * PATIENCE})\n",
    "that waits": f"import asyncio\nasync def initialize(args):\n    await asyncio.sleep({10 * PATIENCE})\n",
    "a module that blocks": f"import time\ntime.sleep({10 * PATIENCE})\n",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("load", LOADS)
def test_a_signal_ends_an_engine_that_loads(tmp_path: Path, load: str, number: signal.Signals) -> None:
    said = "import sys\nprint('begun', file=sys.stderr, flush=True)\n"
    (tmp_path / "slow.py").write_text(said + GENERATE + LOADS[load])
    with running(tmp_path, "in=http", "out=pystr:slow.py", "--http-port", "0", **NEVER_DRAINED) as server:
        server.line_with("begun")
        server.popen.send_signal(number)
        assert server.wait() == 130


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        ("in=http --http-port 0", "registered model"),
        ("in=http --http-port 0", "serving dyn://"),
        ("in=http --http-port 0", "can be served"),
        ("in=dyn", "registered model"),
        ("in=dyn", "serving dyn://"),
    ],
)
def test_a_signal_between_registration_and_serving_ends_it(tmp_path: Path, line: str, moment: str) -> None:
    with running(tmp_path, *line.split(), "out=echo", **NEVER_DRAINED) as server:
        server.line_with(moment)
        server.popen.send_signal(signal.SIGINT)
        assert server.wait() == 0
