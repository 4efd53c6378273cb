"""in=batch: many prompts, whatever happens in between."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pexpect
import pytest

from support.running import RUN, environment, run, running
from support.waiting import PATIENCE, until_sync

COUNT = 1000
ENDLESS = "x" * 50_000
"""At 5 ms a token it takes minutes, so that a batch with it is not finished before it is ended."""


def write_prompts(folder: Path, count: int, *more: str) -> list[str]:
    texts = [f"What is {number} + 1? ü{'!' * (number % 7)}" for number in range(count - len(more))]
    texts += more
    lines = (json.dumps({"text": text}) for text in texts)
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return texts


def output(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]


def wait_for_lines(path: Path, count: int) -> None:
    until_sync(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)


def test_prompts_are_answered_in_order_beside_the_input(tmp_path: Path, model: Path) -> None:
    (tmp_path / "data").mkdir()
    texts = write_prompts(tmp_path / "data", 30)
    done = run(tmp_path, "in=batch:data/prompts.jsonl", "out=echo_core", str(model), "--batch-concurrency=7")
    assert (done.returncode, done.stdout) == (0, b"")
    records = output(tmp_path / "data")
    assert [record["text"] for record in records] == texts
    assert all(texts[index] in record["response"] for index, record in enumerate(records))
    assert all(record["tokens_in"] == record["tokens_out"] > 0 for record in records)
    assert {*records[0]} == {"text", "response", "tokens_in", "tokens_out", "elapsed_ms", "finish_reason"}
    summary = done.stderr.decode()
    assert "30 prompts in" in summary
    assert f"out: {sum(record['tokens_out'] for record in records)} (" in summary
    assert "time to first token" in summary


def test_a_folder_is_its_only_file_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    texts = write_prompts(tmp_path / "data", 3)
    done = run(tmp_path, "in=batch:data", "out=echo")
    assert done.returncode == 0
    records = output(tmp_path / "data")
    assert [record["response"] for record in records] == texts
    assert [record["tokens_in"] for record in records] == [len(text) for text in texts]
    (tmp_path / "data" / "more.jsonl").touch()
    done = run(tmp_path, "in=batch:data", "out=echo")
    assert done.returncode == 1
    assert b"has: more.jsonl, prompts.jsonl; name one" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_batch_that_was_ended_is_resumed_and_each_prompt_answered_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    texts = write_prompts(tmp_path, COUNT, ENDLESS)
    journal = tmp_path / "output.jsonl.journal"
    with running(tmp_path, "in=batch:prompts.jsonl", "out=echo", DYN_TOKEN_ECHO_DELAY_MS="5") as first:
        wait_for_lines(journal, COUNT // 4)
        first.popen.send_signal(number)
        assert first.wait() == (-9 if number == signal.SIGKILL else 130)
    before = journal.read_bytes().count(b"\n") - 1
    assert 0 < before < COUNT
    assert not (tmp_path / "output.jsonl").exists()

    done = run(tmp_path, "in=batch:prompts.jsonl", "out=echo")
    assert done.returncode == 0
    assert f"{COUNT - before} prompts in" in done.stderr.decode()
    assert f"{before} done before" in done.stderr.decode()
    assert [(record["text"], record["response"]) for record in output(tmp_path)] == [(text, text) for text in texts]
    assert not journal.exists()


def test_bad_lines_and_failed_prompts_are_reported_where_they_stand(tmp_path: Path, model: Path) -> None:
    body = {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}
    lines = [
        '{"text": "one"}',
        "not json",
        "",
        json.dumps({"text": "too long " * 40}),
        json.dumps({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body}),
        '{"text": "two"}',
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    done = run(tmp_path, "in=batch:p.jsonl", "out=echo_core", str(model), "--context-length", "100")
    assert done.returncode == 0
    assert "3 failed" in done.stderr.decode()
    one, bad, long, unknown, two = output(tmp_path)
    assert "one" in one["response"]
    assert bad["line"] == 2
    assert "not JSON" in bad["error"]
    assert long["text"].startswith("too long")
    assert "maximum context length is 100 tokens" in long["error"]
    assert (unknown["custom_id"], unknown["response"]["status_code"]) == ("c", 404)
    assert "two" in two["response"]


def test_openai_batches_get_openai_answers(tmp_path: Path, model: Path) -> None:
    chat = {"model": "small-model", "messages": [{"role": "user", "content": "hi"}], "n": 2, "temperature": 1}
    text = {"model": "small-model", "prompt": "Once upon", "echo": True}
    lines = [
        {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "y", "method": "POST", "url": "/v1/completions", "body": text},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run(tmp_path, "in=batch:p.jsonl", "out=echo_core", str(model)).returncode == 0
    first, second = output(tmp_path)
    assert (first["custom_id"], second["custom_id"]) == ("x", "y")
    body = first["response"]["body"]
    assert body["object"] == "chat.completion"
    assert len(body["choices"]) == 2
    assert body["usage"]["completion_tokens"] > 0
    assert second["response"]["body"]["choices"][0]["text"] == "Once uponOnce upon"


def test_ignored_fields_are_named_once_at_the_end(tmp_path: Path, model: Path) -> None:
    body = {"model": "small-model", "messages": [{"role": "user", "content": "hello"}], "zebra": 1, "colour": 2}
    line = {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "p.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    done = run(tmp_path, "in=batch:p.jsonl", "out=echo_core", str(model))
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().count("ignored unknown fields: colour, zebra") == 1


def test_a_batch_where_all_fails_fails(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("nonsense\n")
    assert run(tmp_path, "in=batch:p.jsonl", "out=echo").returncode == 1
    (tmp_path / "p.jsonl").write_text("")
    assert run(tmp_path, "in=batch:p.jsonl", "out=echo", "--output", "none.jsonl").returncode == 0


def test_workers_elsewhere_answer_batches_too(tmp_path: Path) -> None:
    texts = write_prompts(tmp_path, 20)
    with running(tmp_path, "in=dyn://a.b.c", "out=echo", "--model-name", "m") as worker:
        worker.line_with("worker for 'm'")
        assert run(tmp_path, "in=batch:prompts.jsonl", "out=dyn").returncode == 0
    assert [record["response"] for record in output(tmp_path)] == texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("in=batch:nowhere.jsonl", "missing or not a file: nowhere.jsonl"),
        ("in=batch:.", "one file of prompts as JSON lines, and . has: none"),
        ("in=batch:output.jsonl", "where the answers go"),
    ],
)
def test_a_file_that_will_not_do_is_named(tmp_path: Path, words: str, message: str) -> None:
    (tmp_path / "output.jsonl").write_text("{}\n")
    done = run(tmp_path, words, "out=echo")
    assert done.returncode == 1
    assert message in done.stderr.decode()


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    write_prompts(tmp_path, 50)
    env = environment(tmp_path, DYN_TOKEN_ECHO_DELAY_MS="2")
    words = ["in=batch:prompts.jsonl", "out=echo"]
    terminal = pexpect.spawn(RUN[0], [*RUN[1:], *words], env=env, cwd=str(tmp_path), timeout=PATIENCE)
    terminal.expect(r"50/50")
    terminal.expect("50 prompts in")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_the_answers_go_where_they_are_asked_to(tmp_path: Path) -> None:
    write_prompts(tmp_path, 2)
    done = run(tmp_path, "in=batch:prompts.jsonl", "out=echo", "--output", "answers/mine.jsonl")
    assert done.returncode == 1
    assert "cannot write to answers" in done.stderr.decode()
    (tmp_path / "answers").mkdir()
    done = run(tmp_path, "in=batch:prompts.jsonl", "out=echo", "--output", "answers/mine.jsonl")
    assert done.returncode == 0
    assert len((tmp_path / "answers" / "mine.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "output.jsonl").exists()


@pytest.mark.parametrize("flags", [(), ("--output", "mine.jsonl")])
def test_the_answers_of_another_run_are_never_replaced(tmp_path: Path, flags: tuple[str, ...]) -> None:
    write_prompts(tmp_path, 2)
    before = tmp_path / (flags[1] if flags else "output.jsonl")
    before.write_text("earlier answers")
    done = run(tmp_path, "in=batch:prompts.jsonl", "out=echo", *flags)
    assert done.returncode == 1
    assert f"error: {before.name} exists" in done.stderr.decode()
    assert "--output" in done.stderr.decode()
    assert before.read_text() == "earlier answers"


def test_a_byte_order_mark_is_not_part_of_the_first_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n', encoding="utf-8-sig")
    done = run(tmp_path, "in=batch:prompts.jsonl", "out=echo")
    assert done.returncode == 0
    assert [record["response"] for record in output(tmp_path)] == ["one", "two"]


def test_fields_of_a_line_are_kept_and_its_max_tokens_obeyed(tmp_path: Path) -> None:
    lines = [
        {"id": 7, "text": "abcdef", "labels": ["a"], "max_tokens": 3, "response": "old"},
        {"text": "abcdef", "max_tokens": 0},
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run(tmp_path, "in=batch:prompts.jsonl", "out=echo").returncode == 0
    first, second = output(tmp_path)
    assert (first["id"], first["labels"], first["max_tokens"]) == (7, ["a"], 3)
    assert (first["response"], first["finish_reason"]) == ("abc", "length")
    assert "max_tokens must be a whole number" in second["error"]
