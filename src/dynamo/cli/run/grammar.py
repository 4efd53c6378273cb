"""Parses the command line of dynamo-run. Pure: nothing is opened, read or started here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct, field

from dynamo import settings
from dynamo.cli.run import flags
from dynamo.cli.run.flags import RunSettings
from dynamo.engines.catalog import MISTRALRS, plugin_names
from dynamo.settings import Option, Settings, nearest, read
from dynamo.settings.setting import one_of

InputKind = Literal["text", "stdin", "http", "batch", "dyn", "none"]

DEFAULT_ENGINE = MISTRALRS.name
SettingsT = TypeVar("SettingsT", bound=Settings)


class UsageError(ValueError):
    """The command line is wrong; the message is one line and suggests the nearest valid word."""


class Input(Struct, frozen=True):
    """Where requests come from; `target` is the file of a batch or the path of an endpoint."""

    kind: InputKind
    target: str = ""


class Output(Struct, frozen=True):
    """What answers: an engine in this process or, if `engine` is None, workers found on the network."""

    engine: str | None
    file: str | None = None
    path: str = ""
    """The only endpoint whose workers answer; empty for all of them."""
    by_default: bool = False
    """Without `out=`: `dynamo.cli.run.launch` chooses the engine once the model's files may be looked at."""

    @property
    def remote(self) -> bool:
        return self.engine is None


class Command(RunSettings, frozen=True, kw_only=True):
    input: Input
    output: Output
    arguments: list[str] = field(default_factory=list)
    verbosity: int = 0
    show: Literal["help", "version", "completion"] | None = None
    shell: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    """The shared flags that were given: `dynamo.settings.given` picks those of a table."""

    def read(self, table: type[SettingsT], environ: Mapping[str, str]) -> SettingsT:
        """The settings of a table as the command line and the environment have them."""
        return table.from_env(environ, **settings.given(self.flags, table))


def parse(words: Sequence[str], *, terminal: bool = True) -> Command:
    """Read a command line; `terminal` says whether standard input is one, which decides the default input."""
    words, arguments = _split(words)
    values: dict[str, Any] = {"arguments": arguments}
    given: dict[str, Any] = {}
    verbosity, models = 0, []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            values.setdefault("show", "help")
        elif word == "--version":
            values.setdefault("show", "version")
        elif name == "--completion":
            values |= {"show": "completion", "shell": _shell(value if equals else _next(name, rest))}
        elif word in ("-v", "-vv"):
            verbosity += len(word) - 1
        elif name == "--verbosity":
            verbosity += _verbosity(value if equals else None, rest)
        elif name in flags.BY_WORD:
            option = flags.BY_WORD[name]
            text = _text(option, name, value if equals else None, rest)
            given[option.key] = [*given.get(option.key, ()), text] if option.kind is tuple else text
        elif word in flags.NEGATED:
            given[flags.NEGATED[word].key] = "false"
        elif word.startswith("-") and word != "-":
            known = (*flags.BY_WORD, *flags.NEGATED, *flags.OTHER_WORDS)
            raise UsageError(f"unknown flag '{name}'{nearest(name, known)}")
        elif name == "in" and equals:
            _once(values, "input", "in=")
            values["input"] = _input(value)
        elif name == "out" and equals:
            _once(values, "output", "out=")
            values["output"] = _output(value)
        elif equals and name.isalpha():
            raise UsageError(f"'{word}' must start with in= or out={nearest(name + '=', ('in=', 'out='))}")
        elif not word:
            raise UsageError("an empty word: is a shell variable unset?")
        else:
            models.append(word)
    if verbosity > 2:
        raise UsageError("-vv is as verbose as it gets")
    values.setdefault("input", Input("text" if terminal else "stdin"))
    values.setdefault("output", Output(DEFAULT_ENGINE, by_default=True))
    own = read(RunSettings, {}, settings.given(given, RunSettings))
    own["model_path"] = _model(models, own.get("model_path"))
    command = Command(**own, **values, verbosity=verbosity, flags=given)
    if command.show is None:
        _check(command)
    return command


def _split(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """The words before `--`, and those after it, which are the engine's."""
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], list(words[cut + 1 :])


def _once(values: dict[str, Any], field: str, word: str) -> None:
    if field in values:
        raise UsageError(f"{word} is given twice")


def _next(name: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{name} needs a value")
    return rest.pop(0)


def _text(option: Option, name: str, given: str | None, rest: list[str]) -> str:
    """The text of a flag's value; raises UsageError if the flag does not accept it."""
    if option.kind is bool and given is None:
        given = rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    text = _next(name, rest) if given is None else given
    if not text:
        raise UsageError(f"{name} needs a value")
    try:
        option.value((text,) if option.kind is tuple else text, name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return text


def _verbosity(given: str | None, rest: list[str]) -> int:
    """`--verbosity` alone is `-v`; it may be followed by `-v`, `-vv` or a number."""
    if given is None:
        given = rest.pop(0) if rest and rest[0] in flags.VERBOSITIES else "-v"
    if given not in flags.VERBOSITIES:
        raise UsageError(f"--verbosity must be {one_of(tuple(flags.VERBOSITIES))}, not '{given}'")
    return flags.VERBOSITIES[given]


def _shell(name: str) -> str:
    if name not in flags.SHELLS:
        raise UsageError(f"--completion must be {one_of(flags.SHELLS)}, not '{name}'{nearest(name, flags.SHELLS)}")
    return name


def _input(value: str) -> Input:
    kind, colon, target = value.partition(":")
    if value in ("text", "stdin", "http", "none"):
        return Input(value)  # type: ignore[arg-type]  # one of the kinds by the line above
    if kind == "batch":
        if not target:
            raise UsageError("in=batch: needs a file: in=batch:prompts.jsonl")
        return Input("batch", target)
    if kind == "dyn" and (not colon or target.startswith("//")):
        parts = [part for part in re.split(r"[./]", target) if part]
        if len(parts) > 3:
            raise UsageError(f"in={value} has {len(parts)} parts: an endpoint is dyn://NAMESPACE.COMPONENT.ENDPOINT")
        return Input("dyn", target.removeprefix("//"))
    # Nobody types `none` wrongly: it would be named for every short word.
    near = nearest(value, [each for each in flags.INPUTS if each != "none"])
    raise UsageError(f"unknown input 'in={value}'{near or _known('in=', flags.INPUTS)}")


def _output(value: str) -> Output:
    if value in flags.REMOTE or value.startswith("dyn://"):
        return Output(None, path=value.partition("://")[2])
    kind, _, file = value.partition(":")
    if kind in flags.FILE_ENGINES:
        if not file:
            raise UsageError(f"out={kind} needs a Python file: out={kind}:engine.py")
        return Output(kind, file)
    engine = flags.ENGINE_ALIASES.get(value, value)
    if engine in flags.ENGINES:
        return Output(engine)
    plugins = plugin_names()
    if engine in plugins:
        return Output(engine)
    engines = (*flags.ENGINES, *plugins)
    known = (*engines, *flags.ENGINE_ALIASES, *flags.REMOTE, *(f"{name}:" for name in flags.FILE_ENGINES))
    raise UsageError(f"unknown output 'out={value}'{nearest(value, known) or _known('out=', engines)}")


def _known(prefix: str, words: Sequence[str]) -> str:
    return f"; use {prefix}{'|'.join(words)}"


def _model(words: list[str], path: str | None) -> str | None:
    if len(words) > 1:
        raise UsageError(f"one MODEL at most, but there are {len(words)}: {' '.join(words)}{_misplaced(words)}")
    if words and path and words[0] != path:
        raise UsageError(f"the model is given twice: {words[0]} and --model-path {path}")
    return words[0] if words else path


def _misplaced(words: list[str]) -> str:
    """A hint for a word that lacks its `in=` or `out=`."""
    for word in words:
        if word in flags.INPUTS:
            return f"; did you mean 'in={word}'?"
        if word in (*flags.ENGINES, *flags.ENGINE_ALIASES, *flags.REMOTE):
            return f"; did you mean 'out={word}'?"
    return ""


def _check(command: Command) -> None:
    """Reject combinations that do not work."""
    kind, remote = command.input.kind, command.output.remote
    if remote and kind == "dyn":
        raise UsageError("in=dyn:// and out=dyn cannot go together: a worker needs an engine, such as out=mistralrs")
    if remote and kind == "none":
        raise UsageError("in=none and out=dyn cannot go together: a follower node needs an engine")
    if remote:
        for name, value in (
            ("--context-length", command.context_length),
            ("--kv-cache-block-size", command.kv_cache_block_size),
            ("--extra-engine-args", command.engine_args_file),
        ):
            if value is not None:
                raise UsageError(f"{name} belongs to the workers: give it where the engine runs, not with out=dyn")
        if command.model_path:
            raise UsageError(
                f"out=dyn serves what workers offer, not {command.model_path}; to pick one use --model-name"
            )
    if ("tls_cert_path" in command.flags) != ("tls_key_path" in command.flags):
        raise UsageError("--tls-cert-path and --tls-key-path need each other")
    if command.node_rank >= command.num_nodes:
        raise UsageError(f"--node-rank must be less than --num-nodes ({command.num_nodes}), not {command.node_rank}")
    if "leader_addr" in command.flags and command.num_nodes == 1:
        raise UsageError("--leader-addr changes nothing on one node: give --num-nodes too, or leave it out")
    if kind == "none" and not command.node_rank:
        raise UsageError("in=none is for the followers of an engine on several nodes: give --num-nodes and --node-rank")
    if kind != "none" and command.node_rank:
        raise UsageError(f"node {command.node_rank} follows and takes no requests itself: use in=none")
