"""The command line of dynamo-run."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines import registry
from dynamo.run import flags
from dynamo.run.grammar import Command, Input, Output, UsageError, parse


def read(line: str, **options: bool) -> Command:
    return parse(line.split(), **options)


def refusal(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(line)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("line", "input", "output", "model"),
    [
        ("", Input("text"), Output("mistralrs"), None),
        ("Qwen/Qwen3-0.6B", Input("text"), Output("mistralrs"), "Qwen/Qwen3-0.6B"),
        ("in=http out=echo_full", Input("http"), Output("echo_full"), None),
        ("out=echo in=stdin", Input("stdin"), Output("echo_full"), None),
        ("model.gguf out=llama_cpp in=none --num-nodes 2 --node-rank 1 --leader-addr a:1", Input("none"),
         Output("llamacpp"), "model.gguf"),
        ("in=batch:a:b.jsonl", Input("batch", "a:b.jsonl"), Output("mistralrs"), None),
        ("in=dyn://llama3B.backend.generate /m", Input("dyn", "llama3B.backend.generate"), Output("mistralrs"), "/m"),
        ("in=dyn", Input("dyn"), Output("mistralrs"), None),
        ("in=http out=dyn", Input("http"), Output(None), None),
        ("out=auto in=http", Input("http"), Output(None), None),
        ("in=http out=dyn://llama3B_pool", Input("http"), Output(None), None),
        ("out=pystr:/a/my engine.py".replace(" ", "_"), Input("text"), Output("pystr", "/a/my_engine.py"), None),
        ("out=pytok:e.py --model-path repo", Input("text"), Output("pytok", "e.py"), "repo"),
    ],
)  # fmt: skip
def test_inputs_outputs_and_models_in_any_order(line: str, input: Input, output: Output, model: str | None) -> None:
    command = read(line)
    assert (command.input, command.output, command.model) == (input, output, model)


def test_the_default_input_is_stdin_where_there_is_no_terminal() -> None:
    assert read("m", terminal=False).input == Input("stdin")
    assert read("in=text m", terminal=False).input == Input("text")


def test_what_follows_two_dashes_is_the_engines() -> None:
    command = read("out=pystr:e.py -- --engine_args in=x --help")
    assert command.arguments == ["--engine_args", "in=x", "--help"]
    assert command.show is None


def test_the_old_remote_output_is_noted() -> None:
    assert "out=dyn" in read("in=http out=dyn://pool").notes[0]
    assert read("in=http out=dyn").notes == []


def test_verbosity_counts() -> None:
    assert [read(line).verbosity for line in ("m", "-v m", "m -vv", "-v m -v")] == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("line", "show"),
    [("--help", "help"), ("-h in=http", "help"), ("--version", "version"), ("--completion bash", "completion")],
)
def test_what_is_shown_instead_of_run(line: str, show: str) -> None:
    assert read(line).show == show


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("in=htp", ["in=htp", "did you mean 'http'?"]),
        ("out=mistral", ["did you mean 'mistralrs'?"]),
        ("out=zzzzzz", ["unknown output", "mistralrs"]),
        ("in=", ["unknown input", "text"]),
        ("out=", ["unknown output"]),
        ("--http-prot 1", ["'--http-prot'", "did you mean '--http-port'?"]),
        ("--no-such-thing-at-all-xyz", ["unknown flag"]),
        ("-x", ["unknown flag '-x'"]),
        ("-vvv", ["unknown flag '-vvv'; did you mean '-vv'?"]),
        ("-v -vv", ["-vv is as verbose as it gets"]),
        ("inn=http", ["must start with in= or out=", "did you mean 'in='?"]),
        ("http echo_full", ["one MODEL at most", "did you mean 'in=http'?"]),
        ("a b", ["one MODEL at most"]),
        ("a --model-path b", ["given twice"]),
        ("in=http in=text", ["in= is given twice"]),
        ("out=echo out=echo", ["out= is given twice"]),
        ("in=batch:", ["needs a file"]),
        ("in=batch", ["needs a file"]),
        ("out=pystr:", ["out=pystr needs a Python file"]),
        ("--http-port", ["--http-port needs a value"]),
        ("--http-port=", ["--http-port needs a value"]),
        ("--http-port --model-name x", ["--http-port needs a value"]),
        ("--http-port eighty", ["must be a whole number, not 'eighty'"]),
        ("--http-port 65536", ["at most 65535"]),
        ("--context-length 0", ["at least 1"]),
        ("--batch-concurrency 0", ["at least 1"]),
        ("--router-temperature nan", ["must be"]),
        ("--router-mode kvv", ["round-robin, random, least-loaded, power-of-two, direct or kv", "did you mean 'kv'?"]),
        ("--discovery-backend zookeeper", ["memory, file or etcd"]),
        ("--use-kv-events=perhaps", ["true or false"]),
        ("--completion tcsh", ["bash, zsh or fish"]),
        ("in=dyn://a out=dyn", ["in=dyn:// and out=dyn cannot go together"]),
        ("in=dyn://a out=auto", ["cannot go together"]),
        ("in=none out=dyn --num-nodes 2 --node-rank 1 --leader-addr a:1", ["cannot go together"]),
        ("in=http out=dyn --context-length 5", ["--context-length belongs to the workers"]),
        ("in=http out=auto --kv-cache-block-size 5", ["--kv-cache-block-size belongs to the workers"]),
        ("in=http out=dyn --extra-engine-args a.json", ["belongs to the workers"]),
        ("in=http out=dyn model", ["--model-name"]),
        ("--node-rank 1 m", ["less than --num-nodes"]),
        ("--num-nodes 2 m", ["--leader-addr"]),
        ("in=none m", ["--num-nodes and --node-rank"]),
        ("in=http --num-nodes 2 --node-rank 1 --leader-addr a:1 m", ["use in=none"]),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_that_helps(line: str, words: list[str]) -> None:
    message = refusal(line)
    for word in words:
        assert word in message


def test_an_empty_word_is_named() -> None:
    with pytest.raises(UsageError, match="shell variable"):
        parse(["in=http", ""])


def test_every_engine_of_this_build_can_be_named() -> None:
    known = {*flags.ENGINES, *flags.FILE_ENGINES}
    assert set(registry.ENGINES) <= known
    assert set(registry.NOT_YET) <= known
    assert set(registry.ALIASES.items()) <= set(flags.OLD_ENGINES.items())


def test_every_flag_has_a_field() -> None:
    fields = {*Command.__struct_fields__, "model_path"}
    assert {flag.field for flag in flags.FLAGS} <= fields


def some_value(flag: flags.Flag) -> st.SearchStrategy[Any]:
    if flag.choices:
        return st.sampled_from(flag.choices)
    match flag.kind:
        case "int":
            return st.integers(int(flag.low), int(min(flag.high, 10**6)))
        case "float":
            return st.floats(0, 100)
        case "bool":
            return st.booleans()
    return st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)


SAFE = [flag for flag in flags.FLAGS if flag.name not in ("--num-nodes", "--node-rank", "--model-path")]


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[list[str]], dict[str, Any]]:
    """Words that belong together, and what they should mean."""
    groups, values = [["in=http"], ["out=echo_full"], ["some/model"]], {}
    for flag in draw(st.lists(st.sampled_from(SAFE), unique=True, max_size=6)):
        value = draw(some_value(flag))
        text = str(value).lower() if isinstance(value, bool) else str(value)
        word = draw(st.sampled_from((flag.name, *flag.aliases)))
        groups.append([f"{word}={text}"] if draw(st.booleans()) else [word, text])
        values[flag.field] = value
    return draw(st.permutations(groups)), values


@given(command_lines())
def test_flags_mean_the_same_in_any_order_and_both_spellings(line: tuple[list[list[str]], dict[str, Any]]) -> None:
    groups, values = line
    command = parse([word for group in groups for word in group])
    assert (command.input, command.output, command.model) == (Input("http"), Output("echo_full"), "some/model")
    assert {name: getattr(command, name) for name in values} == values


@given(st.lists(st.text(max_size=12) | st.sampled_from([*flags.BY_WORD, "in=", "out=dyn", "in=text", "--", "-v"])))
def test_any_words_make_a_command_or_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        parse(words)
