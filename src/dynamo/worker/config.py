"""What a worker was asked: the file of engine arguments, and what can be rejected without looking at the model."""

from __future__ import annotations

import operator
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, engine_entry
from dynamo.pipeline.output_formats import AUTO, NONE
from dynamo.pipeline.parse import reasoning_formats, tool_formats
from dynamo.protocols.card import ModelType
from dynamo.settings import nearest
from dynamo.settings.worker import WorkerSettings

_FILE = "--extra-engine-args"


def engine_spec(asked: WorkerSettings, **more: Any) -> EngineSpec:
    """All that a command's settings have of it, and the file of engine arguments. Raises EngineError for a bad file."""
    values = {name: getattr(asked, name) for name in EngineSpec.__struct_fields__ if name in asked.__struct_fields__}
    return EngineSpec(**values, **more, extra_engine_args=engine_arguments(asked.engine_args_file))


def check(spec: EngineSpec) -> None:
    """Raises ValueError."""
    asked_types(spec)
    for flag, name, known in (
        ("--dyn-tool-call-parser", spec.tool_call_parser, tool_formats()),
        ("--dyn-reasoning-parser", spec.reasoning_parser, reasoning_formats()),
    ):
        names = [AUTO, NONE, *known]
        if name not in names:
            hint = nearest(name, names) or "; use " + ", ".join(names)
            raise ValueError(f"{flag}: unknown format '{name}'{hint}")
    if spec.custom_jinja_template and engine_entry(spec.engine).takes == "text":
        raise ValueError(f"--custom-jinja-template: the engine '{spec.engine}' takes text and uses no template")


def asked_types(spec: EngineSpec) -> ModelType | None:
    """What to serve; None: what the engine can."""
    words = (spec.endpoint_types or "").lower().replace(",", " ").split()
    kinds = {name.lower(): kind for name, kind in ModelType.__members__.items() if kind is not ModelType.Backend}
    kinds["embeddings"] = ModelType.Embedding
    for word in words:
        if word not in kinds:
            hint = nearest(word, kinds) or f"; use {', '.join(kinds)}"
            raise ValueError(f"--dyn-endpoint-types: unknown type '{word}'{hint}")
    return reduce(operator.or_, (kinds[word] for word in words)) if words else None


def engine_arguments(path: str | None) -> dict[str, Any]:
    """What is in the file. Raises EngineError if it cannot be read."""
    if path is None:
        return {}
    try:
        text = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise EngineError(f"{_FILE} {path}: {error.strerror or error}") from error
    try:
        value = _yaml(text) if Path(path).suffix in (".yaml", ".yml") else msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{_FILE} {path}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise EngineError(f"{_FILE} {path}: must hold names and their values")
    return value


def _yaml(text: bytes) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
