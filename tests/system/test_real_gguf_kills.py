"""Mixed requests to workers of a quantised model that are killed meanwhile: no client sees a failure."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.real_model import smollm2
from support.running import Process, running
from support.waiting import PATIENCE

COUNT = int(os.environ.get("REAL_MODEL_REQUESTS", "200"))
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"dry": {"type": "boolean"}}, "required": ["dry"]},
    },
}


def body(number: int) -> tuple[str, dict[str, Any]]:
    """A path and what to send there: greedy, sampled, guided, streamed, several choices, a forced call."""
    said = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": f"Is {number} odd or even?"},
    ]
    prompt = {"prompt": f"The number {number} is", "max_tokens": 4}
    chat = "/v1/chat/completions"
    forced = {"type": "function", "function": {"name": "weather"}}
    return (
        ("/v1/completions", prompt | {"temperature": 0}),
        ("/v1/completions", prompt | {"temperature": 0.8, "seed": number, "n": 2}),
        ("/v1/completions", prompt | {"temperature": 0, "guided_choice": [" odd", " even"]}),
        (chat, {"messages": said, "max_tokens": 6, "stream": True}),
        (chat, {"messages": said, "max_tokens": 24, "tools": [WEATHER], "tool_choice": forced}),
    )[number % 5]


def ask(url: str, number: int) -> str:
    """The whole answer; raises HTTPError for every status but 200."""
    path, asked = body(number)
    data = json.dumps({"model": "real"} | asked).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text


def is_right(number: int, answer: str) -> bool:
    if number % 5 == 3:
        return '"error"' not in answer and answer.endswith("data: [DONE]\n\n")
    choices = json.loads(answer)["choices"]
    match number % 5:
        case 1:
            return len(choices) == 2
        case 2:
            return choices[0]["text"] in (" odd", " even")
        case 4:
            (call,) = choices[0]["message"]["tool_calls"]
            return set(json.loads(call["function"]["arguments"])) == {"dry"}
    return bool(choices[0]["text"])


def test_mixed_requests_are_answered_while_workers_are_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, "in=http", "out=dyn://real", "--http-port", "0"))

        def worker() -> Process:
            words = ("in=dyn://real", "out=llamacpp", str(smollm2()), "--model-name", "real", "--migration-limit", "4")
            process = stack.enter_context(running(tmp_path, *words, "--", "--n-threads", "1"))
            process.line_with("worker for 'real'")
            return process

        workers, url = [worker(), worker()], server.url()
        server.line_with("model 'real' can be served")
        answered = threading.Semaphore(0)

        def one(number: int) -> tuple[int, str]:
            try:
                return number, ask(url, number)
            finally:
                answered.release()

        def kills() -> Iterator[int]:
            for _ in range(2):
                for _ in range(COUNT // 3):
                    answered.acquire()
                oldest = workers.pop(0)
                oldest.popen.kill()
                workers.append(worker())
                yield oldest.wait()

        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(one, number) for number in range(COUNT)]
            assert list(kills()) == [-9, -9]
            answers = [future.result() for future in asked]
        assert [number for number, answer in answers if not is_right(number, answer)] == []
