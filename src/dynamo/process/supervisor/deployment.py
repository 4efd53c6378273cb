"""The file of `dynamo serve`: which components run, how often, and with which flags. Errors name the place."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.protocols.errors import StartError
from dynamo.settings import nearest

MAX_REPLICAS = 1024
_DEPLOYMENT_KEYS = ("components", "env", "drain_seconds")
_COMPONENT_KEYS = ("kind", "command", "replicas", "flags", "args", "env")
_STAGES = {"router": 1, "frontend": 2}
"""Workers start first and drain last: what sends requests stops before what answers them."""
_OWN_COMMAND = "command"


class DeploymentError(StartError):
    """The file is wrong; the message names the file, the place in it and what is expected there."""


class ComponentSpec(Struct, frozen=True, kw_only=True):
    """One component: `replicas` processes with the same command. `{index}` in a word or value is the replica's."""

    name: str
    kind: str
    words: tuple[str, ...]
    replicas: int = 1
    env: dict[str, str] = {}

    def command(self, index: int) -> list[str]:
        return [_fill_index(word, index) for word in self.words]

    def environment(self, index: int) -> dict[str, str]:
        return {name: _fill_index(value, index) for name, value in self.env.items()}

    @property
    def reports_ready(self) -> bool:
        """A program of the user's own counts as ready once it runs."""
        return self.kind != _OWN_COMMAND


class Deployment(Struct, frozen=True, kw_only=True):
    """Components in the order in which they start; they drain in the reverse order."""

    components: tuple[ComponentSpec, ...]
    env: dict[str, str] = {}
    drain_seconds: float = 60.0
    """After SIGTERM a process has this long to finish; then it is killed."""


def read_deployment(path: Path) -> Deployment:
    try:
        text = path.expanduser().read_bytes()
    except OSError as error:
        raise DeploymentError(f"{path}: {error.strerror or error}") from error
    return parse_deployment(text, str(path))


def parse_deployment(text: bytes | str, file: str = "file") -> Deployment:
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DeploymentError(f"{file}: is not YAML: {' '.join(str(error).split())}") from error
    top = _mapping(document, file, "", _DEPLOYMENT_KEYS)
    listed = _mapping(top.get("components"), file, "components")
    if not listed:
        raise DeploymentError(f"{file}: components: must name at least one component")
    components = [_component(name, value, file) for name, value in listed.items()]
    components.sort(key=lambda spec: _STAGES.get(spec.kind, 0))
    drain = top.get("drain_seconds", 60.0)
    if isinstance(drain, bool) or not isinstance(drain, int | float) or not 0 <= drain < 1e9:
        raise DeploymentError(f"{file}: drain_seconds: must be a number of seconds, not {drain!r}")
    return Deployment(components=tuple(components), env=_env(top.get("env"), file, "env"), drain_seconds=float(drain))


def _component(name: str, value: Any, file: str) -> ComponentSpec:
    place = f"components.{name}"
    given = _mapping({} if value is None else value, file, place, _COMPONENT_KEYS)
    replicas = given.get("replicas", 1)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or not 0 <= replicas <= MAX_REPLICAS:
        wanted = f"must be a whole number from 0 to {MAX_REPLICAS}"
        raise DeploymentError(f"{file}: {place}.replicas: {wanted}, not {replicas!r}")
    words = [
        *_flags(given.get("flags"), file, f"{place}.flags"),
        *_words(given.get("args"), file, f"{place}.args"),
    ]
    if _OWN_COMMAND in given:
        if "kind" in given:
            raise DeploymentError(f"{file}: {place}: has both kind and command: give one")
        kind, program = _OWN_COMMAND, _words(given["command"], file, f"{place}.command")
        if not program:
            raise DeploymentError(f"{file}: {place}.command: must be a list of words")
    else:
        kind = given.get("kind", name)
        program = _program(kind, file, place if "kind" not in given else f"{place}.kind")
    return ComponentSpec(
        name=name, kind=kind, words=(*program, *words), replicas=replicas,
        env=_env(given.get("env"), file, f"{place}.env"),
    )  # fmt: skip


def _program(kind: Any, file: str, place: str) -> list[str]:
    """`python -m dynamo.KIND`, or a worker for an engine that has no such module."""
    known = kinds()
    if not isinstance(kind, str) or kind not in known:
        hint = nearest(str(kind), known) or f"; known are {', '.join(known)}"
        raise DeploymentError(f"{file}: {place}: no kind of component is called {kind!r}{hint}")
    module = {"llamacpp": "llama_cpp"}.get(kind, kind)
    if find_spec(f"dynamo.{module}"):
        return [sys.executable, "-m", f"dynamo.{module}"]
    return [sys.executable, "-m", "dynamo.worker", kind]


def kinds() -> list[str]:
    """The kinds of components: processes of this build, then its engines and those of other distributions."""
    from dynamo.engines.catalog import BUILT_IN, plugin_names

    processes = [name for name in ("frontend", "router", "planner") if find_spec(f"dynamo.{name}")]
    engines = [name for entry in BUILT_IN if not entry.file for name in (entry.name, *entry.aliases)]
    return [*processes, *engines, *plugin_names()]


def _flags(value: Any, file: str, place: str) -> list[str]:
    words: list[str] = []
    for name, each in _mapping({} if value is None else value, file, place).items():
        flag = "--" + str(name).lstrip("-").replace("_", "-")
        if each is True:
            words.append(flag)
        elif each is False:
            words.append(f"--no-{flag[2:]}")
        elif isinstance(each, list):
            for at, item in enumerate(each):
                words += [flag, _text(item, file, f"{place}.{name}[{at}]")]
        else:
            words += [flag, _text(each, file, f"{place}.{name}")]
    return words


def _words(value: Any, file: str, place: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise DeploymentError(f"{file}: {place}: must be a list of words, not {_kind(value)}")
    return [_text(each, file, f"{place}[{at}]") for at, each in enumerate(value)]


def _env(value: Any, file: str, place: str) -> dict[str, str]:
    given = _mapping({} if value is None else value, file, place)
    return {name: _text(each, file, f"{place}.{name}", boolean=True) for name, each in given.items()}


def _text(value: Any, file: str, place: str, *, boolean: bool = False) -> str:
    if boolean and isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DeploymentError(f"{file}: {place}: must be a text or a number, not {_kind(value)}")
    text = str(value)
    if "\0" in text:
        raise DeploymentError(f"{file}: {place}: must not contain a zero byte")
    return text


def _mapping(value: Any, file: str, place: str, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    where = f"{file}: {place}: " if place else f"{file}: "
    if not isinstance(value, dict):
        raise DeploymentError(f"{where}must hold names and their values, not {_kind(value)}")
    for key in value:
        if not isinstance(key, str) or not key or "\0" in key or "=" in key:
            raise DeploymentError(f"{where}{key!r} is not a name")
        if known is not None and key not in known:
            hint = nearest(key, known) or f"; known are {', '.join(known)}"
            raise DeploymentError(f"{where}unknown key '{key}'{hint}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else {dict: "a mapping", list: "a list", bool: "true or false"}.get(
        type(value), repr(value)
    )  # fmt: skip


def _fill_index(text: str, index: int) -> str:
    return text.replace("{index}", str(index))
