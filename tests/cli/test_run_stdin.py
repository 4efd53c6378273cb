"""in=stdin: a prompt in a pipe."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.running import RUN, environment, run
from support.waiting import PATIENCE


def test_a_piped_prompt_is_answered_on_stdout_and_nothing_else_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "out=echo_full", input="What is the capital of France?\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"What is the capital of France?\n", b"")


def test_a_prompt_may_have_many_lines_in_any_script(tmp_path: Path) -> None:
    text = "Grüße\n\n  你好 🎉\nпривет"
    assert run(tmp_path, "in=stdin", "out=echo", input=text).stdout.decode() == text + "\n"


def test_echo_core_shows_the_whole_template(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path, "out=echo_core", str(model), input="hi")
    assert done.stdout.decode() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert done.stderr == b""


def test_the_request_template_limits_the_answer(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"temperature": 0.5, "max_completion_tokens": 3}')
    assert run(tmp_path, "out=echo", "--request-template", "t.json", input="abcdef").stdout == b"abc\n"


@pytest.mark.parametrize(
    ("input", "words"),
    [(b"", "no prompt"), (b" \n", "no prompt"), (b"\xff\xfe", "not UTF-8")],
)
def test_a_prompt_that_is_none_is_an_error(tmp_path: Path, input: bytes, words: str) -> None:
    done = run(tmp_path, "out=echo", input=input)
    assert (done.returncode, done.stdout) == (1, b"")
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_prompt_that_does_not_fit_is_told_with_a_failing_exit_code(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path, "out=echo_core", "--context-length", "4", str(model), input="a long prompt indeed")
    assert (done.returncode, done.stdout) == (1, b"")
    assert "maximum context length is 4 tokens" in done.stderr.decode()


def test_a_prefill_worker_answers_nobody_by_itself(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text('{"is_prefill": true}')
    done = run(tmp_path, "out=mocker", "tiny", "--extra-engine-args", "args.json", input="hi")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"a prefill worker answers no requests itself: use in=dyn://" in done.stderr


def test_a_reader_that_leaves_ends_the_answer(tmp_path: Path) -> None:
    env = environment(tmp_path, DYN_TOKEN_ECHO_DELAY_MS="1")
    process = subprocess.Popen(
        [*RUN, "out=echo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=tmp_path,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"a\n" * 100_000)
    process.stdin.close()
    assert process.stdout.readline() == b"a\n"
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_signal_ends_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*RUN, "out=echo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(tmp_path, DYN_TOKEN_ECHO_DELAY_MS="50"),
        cwd=tmp_path,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"abc" * 1000)
    process.stdin.close()
    assert process.stdout.read(1) == b"a"
    process.terminate()
    assert process.wait(timeout=PATIENCE) == 130
    process.stdout.close()
