"""The flags of dynamo-run: its own and those it shares with other commands."""

from typing import Annotated

from msgspec import Meta

from dynamo.engines.catalog import BUILT_IN
from dynamo.settings import Option, Setting, options
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.network import NetworkSettings
from dynamo.settings.router import RouterSettings
from dynamo.settings.worker import EngineSettings


class RunSettings(EngineSettings, frozen=True, kw_only=True):
    # fmt: off
    model_path: Annotated[str | None, Setting(
        "--model-path", help="the same as the word MODEL", metavar="MODEL", group="model")] = None
    model_name: Annotated[str | None, Setting(
        "--model-name", metavar="NAME", help="name to serve the model as", group="model",
        default="repo or file")] = None
    # Without a setting a field is no flag here: `in=dyn://` names the endpoint, and the router's mode says whether KV
    # events are of use.
    custom_jinja_template: str | None = None
    endpoint_types: str | None = None
    namespace: str | None = None
    component: str | None = None
    endpoint: str | None = None
    disable_kv_routing: bool = False
    request_template: Annotated[str | None, Setting(
        "--request-template", help="JSON: defaults for fields of requests", metavar="FILE", group="requests")] = None
    batch_concurrency: Annotated[int, Meta(ge=1, le=65536), Setting(
        "--batch-concurrency", help="batch prompts at a time", group="requests")] = 64
    batch_output: Annotated[str | None, Setting(
        "--output", help="where the answers of a batch go", metavar="FILE", group="requests",
        default="output.jsonl")] = None
    # fmt: on


_ONE_PROCESS = ("--http-workers",)
"""dynamo-run serves from its own process only."""
_OWN = options(RunSettings)
_SHARED = tuple(
    option
    for table in (FrontendSettings, RouterSettings, NetworkSettings)
    for option in options(table)
    if option.setting.flag
    and option.setting.flag not in _ONE_PROCESS
    # One that a worker has too, such as --migration-limit, sets both.
    and option.key not in {own.key for own in _OWN}
)
OPTIONS: tuple[Option, ...] = (*_OWN, *_SHARED)
BY_WORD = {word: option for option in OPTIONS for word in option.flags}
NEGATED = {f"--no-{word[2:]}": option for word, option in BY_WORD.items() if option.kind is bool}
OTHER_WORDS = ("--help", "-h", "--version", "--completion", "-v", "-vv", "--verbosity")
VERBOSITIES = {"-v": 1, "-vv": 2, "0": 0, "1": 1, "2": 2}
SHELLS = ("bash", "zsh", "fish")

GROUPS = ("model", "engine", "HTTP", "requests", "router", "network")
_SHOWN_SHARED = (
    "--http-host", "--http-port", "--tls-cert-path", "--tls-key-path", "--router-mode", "--kv-overlap-score-weight",
    "--router-temperature", "--use-kv-events", "--discovery-backend", "--request-plane", "--event-plane",
)  # fmt: skip
"""The shared flags shown in the one screen of help; `python -m dynamo.frontend --help` shows all."""
_HIDDEN = ("--draft-model", "--draft-tokens")
"""Shown by `python -m dynamo.ENGINE --help`."""
SHOWN = tuple(
    option
    for option in OPTIONS
    if (option in options(RunSettings) and option.setting.flag not in _HIDDEN) or option.setting.flag in _SHOWN_SHARED
)

INPUTS = ("text", "stdin", "http", "batch:", "dyn://", "none")
ENGINES = tuple(entry.name for entry in BUILT_IN if not entry.file)
FILE_ENGINES = tuple(entry.name for entry in BUILT_IN if entry.file)
ENGINE_ALIASES = {alias: entry.name for entry in BUILT_IN for alias in entry.aliases}
REMOTE = ("dyn", "auto")


def takes_path(option: Option) -> bool:
    return option.metavar in ("FILE", "FOLDER", "MODEL")
