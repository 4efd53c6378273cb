"""A quantised GGUF file as users bring it, with every engine that runs it, over HTTP.

Its prompts are of equal length and arrive together: mistral.rs cannot batch such prompts with quantised weights.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.real_model import smollm2
from support.running import running
from support.waiting import PATIENCE

PROMPTS = [f"The number {number} is" for number in range(10, 26)]


class Server:
    def __init__(self, url: str, words: Sequence[str], choice: str) -> None:
        self.words = words
        self.choice = choice
        """The line that says which engine was chosen; empty with `out=`."""
        self._url = url

    def complete(self, prompt: str, **more: Any) -> str:
        """The text of a greedy answer; raises HTTPError for every status but 200."""
        body = {"model": "SmolLM2-135M-Instruct.Q4_1", "prompt": prompt, "temperature": 0, "max_tokens": 3} | more
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["choices"][0]["text"]

    def complete_together(self, prompts: Sequence[str], **more: Any) -> list[str]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, **more), prompts))


@pytest.fixture(
    scope="module", params=[("out=mistralrs",), ("out=llamacpp",), ()], ids=["mistralrs", "llamacpp", "default"]
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = request.param
    with running(tmp_path_factory.mktemp("server"), "in=http", *words, "--http-port", "0", str(smollm2())) as process:
        choice = "" if words else process.line_with("no out= given")
        yield Server(process.url(), words, choice)
        assert process.end() == 0


def test_four_prompts_that_arrive_together_are_answered_as_alone(server: Server) -> None:
    alone = [server.complete(prompt) for prompt in PROMPTS[:4]]
    assert all(alone)
    assert server.complete_together(PROMPTS[:4]) == alone


def test_sixteen_prompts_that_arrive_together_are_answered(server: Server) -> None:
    assert all(server.complete_together(PROMPTS))


def test_guided_prompts_that_arrive_together_keep_to_their_grammar(server: Server) -> None:
    answers = server.complete_together(PROMPTS[:8], guided_choice=[" odd", " even"])
    assert set(answers) <= {" odd", " even"}


def test_llama_cpp_is_chosen_for_a_gguf_file_without_out(server: Server) -> None:
    if server.words:
        assert server.choice == ""
    else:
        assert server.choice.endswith("no out= given, using out=llamacpp: the model is a GGUF file")
