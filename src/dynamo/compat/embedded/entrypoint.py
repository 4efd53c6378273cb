"""`make_engine` and `run_input`: what `dynamo-run` does, on a runtime of the program."""

from __future__ import annotations

import enum
import importlib
import os
from typing import Any

from msgspec import Struct

from dynamo.cli.run.grammar import Command, parse
from dynamo.engines.mocker.args import MockerArgs
from dynamo.llm.router_config import RouterConfig
from dynamo.runtime import DistributedRuntime
from dynamo.settings.router import RouterSettings
from dynamo.settings.setting import options

MockEngineArgs = MockerArgs


class EngineType(enum.Enum):
    """What answers; `Dynamic` means the workers on the network."""

    Echo = "echo_full"
    Dynamic = "dyn"
    Mocker = "mocker"


_WORDS = {
    "model_path": "--model-path",
    "model_name": "--model-name",
    "template_file": "--request-template",
    "kv_cache_block_size": "--kv-cache-block-size",
    "http_host": "--http-host",
    "http_port": "--http-port",
    "tls_cert_path": "--tls-cert-path",
    "tls_key_path": "--tls-key-path",
    "extra_engine_args": "--extra-engine-args",
    "namespace": "--namespace",
    "namespace_prefix": "--namespace-prefix",
    "metrics_prefix": "--metrics-prefix",
    "migration_limit": "--migration-limit",
}


class EntrypointArgs:
    """The settings by ai-dynamo's names. One that does nothing here is rejected when it is set."""

    def __init__(
        self, engine_type: EngineType, *, router_config: RouterConfig | None = None,
        endpoint_id: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        for name, value in options.items():
            if name not in _WORDS and value not in (None, False):
                known = ", ".join([*_WORDS, "endpoint_id", "router_config"])
                raise TypeError(f"EntrypointArgs: '{name}' is not there; it knows {known}")
        self.engine_type = engine_type
        self.router_config = router_config
        self.endpoint_id = endpoint_id
        self.options = {name: value for name, value in options.items() if name in _WORDS and value is not None}

    def words(self) -> list[str]:
        """The settings as flags of dynamo-run."""
        dropped = ("model_path", "kv_cache_block_size") if self.engine_type is EngineType.Dynamic else ()
        given = {_WORDS[name]: value for name, value in self.options.items() if name not in dropped}
        if not given.get("--migration-limit"):
            given.pop("--migration-limit", None)
        if self.router_config:
            given |= _router_flags(self.router_config)
        return [f"out={self.engine_type.value}", *(f"{word}={_text(value)}" for word, value in given.items())]


class EngineConfig(Struct, frozen=True):
    args: EntrypointArgs


async def make_engine(distributed_runtime: DistributedRuntime, args: EntrypointArgs) -> EngineConfig:
    """Check the settings; the engine itself starts in `run_input`."""
    parse([*args.words(), "in=http"])
    return EngineConfig(args)


async def run_input(
    distributed_runtime: DistributedRuntime,
    input: str,
    engine_config: EngineConfig,
    frontend_route_extensions: Any = None,
) -> None:
    """Serve `http`, `text`, `stdin`, `batch:FILE` or `dyn://NAMESPACE.COMPONENT.ENDPOINT` until it ends."""
    if frontend_route_extensions:
        raise ValueError("frontend_route_extensions: routes cannot be added to the frontend")
    command: Command = parse([*engine_config.args.words(), f"in={input}"])
    module = importlib.import_module(f"dynamo.cli.run.{command.input.kind}")
    await module.run(distributed_runtime, command, os.environ)


def _router_flags(config: RouterConfig) -> dict[str, Any]:
    settings, defaults = config.settings(), RouterSettings()
    words = {option.field: option.flags[0] for option in options(RouterSettings)}
    return {
        words[name]: value
        for name in RouterSettings.__struct_fields__
        if (value := getattr(settings, name)) != getattr(defaults, name)
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
