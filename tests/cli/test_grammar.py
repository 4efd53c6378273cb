"""The command line of dynamo-run."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from dynamo.cli.run import flags
from dynamo.cli.run.flags import RunSettings
from dynamo.cli.run.grammar import Command, Input, Output, UsageError, parse
from dynamo.engines.catalog import BUILT_IN, EngineEntry
from dynamo.settings import Option, options
from dynamo.settings import given as given_of
from dynamo.settings import read as read_settings
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.network import NetworkSettings
from dynamo.settings.router import RouterSettings

BY_DEFAULT = Output("mistralrs", by_default=True)


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
        ("", Input("text"), BY_DEFAULT, None),
        ("Qwen/Qwen3-0.6B", Input("text"), BY_DEFAULT, "Qwen/Qwen3-0.6B"),
        ("in=http out=echo_full", Input("http"), Output("echo_full"), None),
        ("out=echo in=stdin", Input("stdin"), Output("echo_full"), None),
        ("model.gguf out=llama_cpp in=none --num-nodes 2 --node-rank 1 --leader-addr a:1", Input("none"),
         Output("llamacpp"), "model.gguf"),
        ("in=batch:a:b.jsonl", Input("batch", "a:b.jsonl"), BY_DEFAULT, None),
        ("in=dyn://llama3B.backend.generate /m", Input("dyn", "llama3B.backend.generate"), BY_DEFAULT, "/m"),
        ("in=dyn", Input("dyn"), BY_DEFAULT, None),
        ("in=http out=dyn", Input("http"), Output(None), None),
        ("out=auto in=http", Input("http"), Output(None), None),
        ("in=http out=dyn://llama3B_pool", Input("http"), Output(None, path="llama3B_pool"), None),
        ("out=pystr:/a/my engine.py".replace(" ", "_"), Input("text"), Output("pystr", "/a/my_engine.py"), None),
        ("out=pytok:e.py --model-path repo", Input("text"), Output("pytok", "e.py"), "repo"),
    ],
)  # fmt: skip
def test_inputs_outputs_and_models_in_any_order(line: str, input: Input, output: Output, model: str | None) -> None:
    command = read(line)
    assert (command.input, command.output, command.model_path) == (input, output, model)


def test_the_default_input_is_stdin_where_there_is_no_terminal() -> None:
    assert read("m", terminal=False).input == Input("stdin")
    assert read("in=text m", terminal=False).input == Input("text")


def test_what_follows_two_dashes_is_the_engines() -> None:
    command = read("out=pystr:e.py -- --engine_args in=x --help")
    assert command.arguments == ["--engine_args", "in=x", "--help"]
    assert command.show is None


def test_verbosity_counts() -> None:
    assert [read(line).verbosity for line in ("m", "-v m", "m -vv", "-v m -v")] == [0, 1, 2, 2]
    words = ("--verbosity m", "--verbosity -vv m", "--verbosity=2 m", "--verbosity 0 m", "m --verbosity --verbosity")
    assert [read(line).verbosity for line in words] == [1, 2, 2, 0, 2]


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
        ("in=nope", ["unknown input 'in=nope'; use in=text|stdin|http|batch:|dyn://|none"]),
        ("in=dyn://a.b.c.d", ["in=dyn://a.b.c.d has 4 parts", "dyn://NAMESPACE.COMPONENT.ENDPOINT"]),
        ("out=", ["unknown output"]),
        ("--http-prot 1", ["'--http-prot'", "did you mean '--http-port'?"]),
        ("--no-such-thing-at-all-xyz", ["unknown flag"]),
        ("-x", ["unknown flag '-x'"]),
        ("-vvv", ["unknown flag '-vvv'; did you mean '-vv'?"]),
        ("--verbosity=loud", ["--verbosity must be -v, -vv, 0, 1 or 2, not 'loud'"]),
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
        ("--discovery-backend zookeeper", ["memory, file, etcd or kubernetes"]),
        ("--use-kv-events=perhaps", ["true or false"]),
        ("--completion tcsh", ["bash, zsh or fish"]),
        ("in=dyn://a out=dyn", ["in=dyn:// and out=dyn cannot go together"]),
        ("in=dyn://a out=auto", ["cannot go together"]),
        ("in=none out=dyn --num-nodes 2 --node-rank 1 --leader-addr a:1", ["cannot go together"]),
        ("in=http out=dyn --context-length 5", ["--context-length belongs to the workers"]),
        ("in=http out=auto --kv-cache-block-size 5", ["--kv-cache-block-size belongs to the workers"]),
        ("in=http out=dyn --extra-engine-args a.json", ["belongs to the workers"]),
        ("in=http out=dyn model", ["--model-name"]),
        ("in=http --tls-cert-path a.pem", ["need each other"]),
        ("--node-rank 1 m", ["less than --num-nodes"]),
        ("--leader-addr a:1 m", ["--num-nodes"]),
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


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_every_engine_of_this_build_can_be_named(entry: EngineEntry) -> None:
    file = ":e.py" if entry.file else ""
    for name in (entry.name, *entry.aliases):
        assert read(f"out={name}{file}").output == Output(entry.name, "e.py" if entry.file else None)


def test_no_two_settings_share_a_flag() -> None:
    words = [word for option in flags.OPTIONS for word in option.flags]
    assert len(words) == len(set(words))


def some_value(option: Option) -> st.SearchStrategy[Any]:
    if option.choices:
        return st.sampled_from(option.choices)
    if option.kind is bool:
        return st.booleans()
    if option.kind in (int, float):
        low = max((bound.ge for bound in option.bounds if bound.ge is not None), default=1)
        high = min((bound.le for bound in option.bounds if bound.le is not None), default=10**6)
        return st.integers(int(low), int(min(high, 10**6))) if option.kind is int else st.floats(max(low, 0.5), 1)
    return st.text("abcxyz0189", min_size=1, max_size=8).map(lambda text: f"https://{text}")


ALONE_WRONG = (
    "--http-allowed-hosts",
    "--leader-addr",
    "--mcp-command",
    "--mcp-server",
    "--num-nodes",
    "--node-rank",
    "--model-path",
    "--tls-cert-path",
    "--tls-key-path",
)
SAFE = [option for option in flags.OPTIONS if option.name not in ALONE_WRONG and not option.setting.parse]


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[list[str]], dict[str, Any]]:
    """Words that belong together, and what they should mean."""
    groups, values = [["in=http"], ["out=echo_full"], ["some/model"]], {}
    for option in draw(st.lists(st.sampled_from(SAFE), unique_by=lambda option: option.key, max_size=6)):
        value = draw(some_value(option))
        text = str(value).lower() if isinstance(value, bool) else str(value)
        word = draw(st.sampled_from(option.flags))
        groups.append([f"{word}={text}"] if draw(st.booleans()) else [word, text])
        values[option.key] = (text,) if option.kind is tuple else option.kind(value)
    return draw(st.permutations(groups)), values


@given(command_lines())
def test_flags_mean_the_same_in_any_order_and_both_spellings(line: tuple[list[list[str]], dict[str, Any]]) -> None:
    groups, values = line
    command = parse([word for group in groups for word in group])
    assert (command.input, command.output, command.model_path) == (Input("http"), Output("echo_full"), "some/model")
    meant = read_flags(RunSettings, command) | read_flags(FrontendSettings, command)
    meant |= read_flags(RouterSettings, command) | read_flags(NetworkSettings, command)
    assert {name: meant[name] for name in values} == values
    own = {option.field for option in options(RunSettings)}
    assert all(getattr(command, name) == values[name] for name in values if name in own)


def read_flags(table: type[Struct], command: Command) -> dict[str, Any]:
    """Every setting of a table by the name of its flag, as the room that owns it would read the command."""
    values = read_settings(table, {}, given_of(command.flags, table))
    return {option.key: values.get(option.field) for option in options(table)}


@given(st.lists(st.text(max_size=12) | st.sampled_from([*flags.BY_WORD, "in=", "out=dyn", "in=text", "--", "-v"])))
def test_any_words_make_a_command_or_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        parse(words)
