"""The load generators aiperf and guidellm against the mocker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_measures_a_stream(mocker: str, long_model: Path, tmp_path: Path, kind: str) -> None:
    size = ("--request-count", "10", "--concurrency", "2", "--isl", "50", "--osl", "10")
    words = ("--tokenizer", str(long_model), "--ui", "none", "--artifact-dir", str(tmp_path / "out"))
    command = ("aiperf", "profile", "-m", "scripted", "-u", mocker, "--endpoint-type", kind, "--streaming")
    Installed("aiperf", tmp_path).run(*command, *size, *words)
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 10
    assert report["time_to_first_token"]["avg"] > 0
    assert not report.get("error_summary")


def test_guidellm_measures_a_stream(mocker: str, long_model: Path, tmp_path: Path) -> None:
    words = ("--model", "scripted", "--processor", str(long_model), "--data", "prompt_tokens=20,output_tokens=8")
    command = ("guidellm", "benchmark", "run", "--target", mocker, "--rate-type", "synchronous", "--max-requests", "5")
    report = tmp_path / "report.json"
    Installed("guidellm", tmp_path).run(
        *command, *words, "--output-path", str(report), "--disable-progress", HF_HUB_OFFLINE="1"
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert benchmark["run_stats"]["requests_made"]["successful"] == 5
    assert benchmark["run_stats"]["requests_made"]["errored"] == 0
