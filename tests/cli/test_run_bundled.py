"""The first command: nothing but dynamo-run, and the model that comes with it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pexpect

from support.running import RUN, environment, run, running
from support.waiting import PATIENCE

QUESTION = "What is the capital of France?"


def test_a_pipe(tmp_path: Path) -> None:
    done = run(tmp_path, input=QUESTION)
    assert (done.returncode, done.stdout.decode()) == (0, "The capital of France is Paris.\n")
    assert done.stderr.decode() == "no model given: using the bundled model 'tiny'\n"


def test_its_name_finds_it_unless_a_folder_here_has_that_name(tmp_path: Path) -> None:
    done = run(tmp_path, "tiny", input=QUESTION)
    assert (done.returncode, done.stdout.decode()) == (0, "The capital of France is Paris.\n")
    assert done.stderr == b""
    (tmp_path / "tiny").mkdir()
    done = run(tmp_path, "tiny", input=QUESTION)
    assert done.returncode == 1
    assert "no config.json" in done.stderr.decode()


def test_a_chat(tmp_path: Path) -> None:
    env = environment(tmp_path, PROMPT_TOOLKIT_NO_CPR="1")
    chat = pexpect.spawn(RUN[0], RUN[1:], env=env, cwd=str(tmp_path), encoding="utf-8", timeout=PATIENCE)
    try:
        chat.expect_exact("Talking to tiny")
        chat.expect_exact("\x1b[?2004h")
        chat.send(QUESTION + "\r")
        chat.expect_exact("The capital of France is Paris.")
        chat.expect_exact("\x1b[?2004h")
        chat.sendeof()
        chat.expect(pexpect.EOF)
    finally:
        chat.close(force=True)
    assert chat.exitstatus == 0


def test_a_server_streaming_and_plain(tmp_path: Path) -> None:
    with running(tmp_path, "in=http", "--http-port", "0") as server:
        client = openai.OpenAI(base_url=f"{server.url()}/v1", api_key="none")
        asked = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "max_completion_tokens": 200}
        plain = client.chat.completions.create(**asked)  # type: ignore[call-overload]
        assert plain.choices[0].message.content == "The capital of France is Paris."
        chunks = client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == "The capital of France is Paris."
        assert len([piece for piece in pieces if piece]) > 1
        client.close()
        assert server.end() == 0


def test_thinking_and_tools_are_parsed(tmp_path: Path) -> None:
    weather = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    with running(tmp_path, "in=http", "--http-port", "0") as server:
        client = openai.OpenAI(base_url=f"{server.url()}/v1", api_key="none")
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[weather],  # type: ignore[list-item]
            temperature=0,
        )
        calls = answer.choices[0].message.tool_calls
        assert calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert calls[0].function.name == "get_weather"  # type: ignore[union-attr]
        thought = (
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": QUESTION}],
                temperature=0,
                extra_body={"chat_template_kwargs": {"enable_thinking": True}},
            )
            .choices[0]
            .message
        )
        assert "<think>" not in (thought.content or "")
        assert getattr(thought, "reasoning_content", "")
        assert "Paris" in (thought.content or "")
        client.close()


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 5}
SIZE = {"type": "object", "properties": {"size": {"enum": ["big", "small"]}}, "required": ["size"]}
NESTED = {"type": "object", "properties": {"of": SIZE, "counts": NUMBERS}, "required": ["of", "counts"]}


def test_forced_json_is_whole_and_written_on_one_line(tmp_path: Path) -> None:
    """`benchmarks/guided_output.py` asks 100 times for each."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    named = {"type": "function", "function": {"name": "get_weather"}}
    with running(tmp_path, "in=http", "--http-port", "0") as server:
        client = openai.OpenAI(base_url=f"{server.url()}/v1", api_key="none")

        def ask(question: str, **more: Any) -> Any:
            said = [{"role": "user", "content": question}, *more.pop("after", [])]
            asked = {"model": "tiny", "messages": said, "max_tokens": 200, **more}
            return client.chat.completions.create(**asked).choices[0]

        for temperature, question in itertools.product((0, 1), ("Hello", "What is the weather in Paris?")):
            for choice in ("required", named):
                answer = ask(question, tools=[tool], tool_choice=choice, temperature=temperature)
                assert answer.finish_reason == ("stop" if choice is named else "tool_calls")
                assert answer.message.content is None
                (call,) = answer.message.tool_calls
                assert list(json.loads(call.function.arguments)) == ["city"]
            for schema in (NUMBERS, SIZE, NESTED):
                form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
                answer = ask(question, response_format=form, temperature=temperature)
                assert answer.finish_reason == "stop"
                value = json.loads(answer.message.content)
                jsonschema_rs.validate(schema, value)
                assert len(answer.message.content) <= len(json.dumps(value))
        for limit in range(1, 33):
            answer = ask(QUESTION, tools=[tool], tool_choice="required", temperature=0, max_tokens=limit)
            assert (answer.finish_reason, answer.message.content or "") == ("length", "")
        (call,) = answer.message.tool_calls
        returned = [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "?"}]
        assert ask(QUESTION, after=returned, tools=[tool]).message.content
        client.close()


def test_a_batch(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(f'{{"text": "{QUESTION}"}}\n{{"text": "What is 2 + 3?"}}\n')
    assert run(tmp_path, "in=batch:prompts.jsonl").returncode == 0
    first, second = (tmp_path / "output.jsonl").read_text().splitlines()
    assert "The capital of France is Paris." in first
    assert "5" in second
