"""EleutherAI's lm-eval on two tasks of its user's own: generation over chats, log-likelihoods over completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "lm-eval"

DOCUMENTS = """\
{"question": "Say apple", "choices": ["apple", "pear"], "label": 0}
{"question": "Say pear", "choices": ["apple", "pear"], "label": 1}
"""
TASK = """
task: own
dataset_path: json
dataset_kwargs: {data_files: {test: documents.jsonl}}
test_split: test
doc_to_text: "{{question}}"
"""
GENERATION = """
output_type: generate_until
doc_to_target: "{{question}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 20}
metric_list: [{metric: exact_match}]
"""
CHOICE = """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc}]
"""


def evaluate(client: Installed, place: Path, task: str, *words: str) -> dict[str, Any]:
    (client.home / "documents.jsonl").write_text(DOCUMENTS)
    (place / "own.yaml").write_text(TASK + task)
    own = ("--include_path", str(place), "--tasks", "own", "--output_path", str(place / "out"))
    client.run("lm_eval", *words, *own, HF_HUB_OFFLINE="1")
    (results,) = (place / "out").rglob("results*.json")
    return json.loads(results.read_text())["results"]["own"]


def test_answers_are_generated(client: Installed, scripted: str, tmp_path: Path) -> None:
    model = f"model=scripted,base_url={scripted}/v1/chat/completions"
    words = ("--model", "local-chat-completions", "--model_args", model, "--apply_chat_template")
    assert evaluate(client, tmp_path, GENERATION, *words)["exact_match,none"] == 1


def test_the_likelier_choice_is_found(client: Installed, scripted: str, long_model: Path, tmp_path: Path) -> None:
    model = f"model=scripted,base_url={scripted}/v1/completions,tokenizer={long_model}"
    words = ("--model", "local-completions", "--model_args", model)
    assert evaluate(client, tmp_path, CHOICE, *words)["acc,none"] == 1


def test_the_mocker_gives_log_likelihoods(client: Installed, mocker: str, long_model: Path, tmp_path: Path) -> None:
    model = f"model=scripted,base_url={mocker}/v1/completions,tokenizer={long_model}"
    words = ("--model", "local-completions", "--model_args", model, "--log_samples")
    assert evaluate(client, tmp_path, CHOICE, *words)["acc,none"] in (0, 0.5, 1)
    (samples,) = (tmp_path / "out").rglob("samples*.jsonl")
    found = [json.loads(line)["filtered_resps"] for line in samples.read_text().splitlines()]
    assert len(found) == 2
    assert all(float(likelihood) < 0 for choices in found for likelihood, _ in choices)
