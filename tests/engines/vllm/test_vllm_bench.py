"""`vllm bench serve`, unchanged, against a frontend over vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo.model import bundled
from support.running import environment, running

# The command `vllm` asks for a package of that name, which the build for CPUs is not.
BENCH = """
from vllm.entrypoints.cli.benchmark.serve import BenchmarkServingSubcommand as Serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
Serve.add_cli_args(parser)
Serve.cmd(parser.parse_args())
"""
SHAPE = ("--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8", "--num-prompts", "8")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    program = [sys.executable, "-m", "dynamo.cli.main", "in=http", "out=vllm", str(bundled()), "--model-name", "tiny"]
    env = environment(home, HOME=str(home), DYN_HTTP_PORT="0", OMP_NUM_THREADS="1")
    with running(home, program=program, **env) as process:
        yield process.url()


@pytest.mark.parametrize(
    "api", [("openai-chat", "/v1/chat/completions"), ("vllm", "/v1/completions")], ids=["chat", "completions"]
)
def test_vllm_bench_serve_measures_a_frontend(api: tuple[str, str], tmp_path: Path, server: str) -> None:
    backend, endpoint = api
    words = f"--backend {backend} --endpoint {endpoint} --base-url {server} --model tiny".split()
    words += ["--tokenizer", str(bundled()), "--save-result", "--result-dir", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-c", BENCH, *words, *SHAPE, "--result-filename", "r.json"], cwd=tmp_path, check=True
    )
    result = json.loads((tmp_path / "r.json").read_bytes())
    assert (result["completed"], result["total_output_tokens"]) == (8, 64)
