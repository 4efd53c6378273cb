"""Writes a worker's settings and surroundings as JSON, for reports of problems."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from dynamo import __version__

log = logging.getLogger(__name__)

_PREFIXES = ("DYN_", "ETCD_", "NATS_", "OTEL_", "HF_", "VLLM_", "SGLANG_", "TRTLLM_", "CUDA_", "NCCL_", "UCX_", "NIXL_")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")
_encoders: dict[type, Callable[[Any], Any]] = {}


def register_encoder(kind: type) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Decorates a function that turns objects of this type into what JSON can hold."""

    def register(encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _encoders[kind] = encode
        return encode

    return register


def add_config_dump_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dump-config-to", metavar="FILE", help="write the settings and surroundings to this file")


def get_environment_vars() -> dict[str, str]:
    """The variables that a worker reads; values of secrets are hidden."""
    return {
        name: "<hidden>" if any(word in name for word in _SECRETS) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES)
    }


def get_system_info() -> dict[str, Any]:
    return {"platform": platform.platform(), "machine": platform.machine(), "cpus": os.cpu_count()}


def get_runtime_info() -> dict[str, Any]:
    return {"python": sys.version, "executable": sys.executable, "pid": os.getpid(), "folder": os.getcwd()}


def get_config_dump(config: Any, extra_info: dict[str, Any] | None = None) -> str:
    """The dump as JSON with sorted keys: equal settings give equal text."""
    facts = {
        "config": config,
        "environment": get_environment_vars(),
        "system_info": get_system_info(),
        "runtime_info": get_runtime_info(),
        "dynamo_version": __version__,
        "installed_packages": {each.name: each.version for each in distributions()},
        **(extra_info or {}),
    }
    return json.dumps(facts, default=_plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def dump_config(dump_config_to: str | None, config: Any) -> None:
    """Write the dump to a file, whose folder is created; without a file, log it at the level debug."""
    if dump_config_to is None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("configuration: %s", get_config_dump(config))
        return
    path = Path(dump_config_to)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(get_config_dump(config), encoding="utf-8")
    except OSError as error:
        # A worker that cannot write its report still serves.
        log.error("cannot write the configuration to %s: %s", path, error)


def _plain(value: Any) -> Any:
    for kind, encode in _encoders.items():
        if isinstance(value, kind):
            return encode(value)
    match value:
        case enum.Enum():
            return str(value)
        case set() | frozenset():
            return sorted(value, key=str)
        case argparse.Namespace():
            return vars(value)
        case msgspec.Struct():
            return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return str(value)
