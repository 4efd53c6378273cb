"""The arguments of an SGLang engine: its own flags, `--extra-engine-args`, and what dynamo's flags say."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from sglang.srt.server_args import ServerArgs

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.sglang.handoff import ROLES
from dynamo.settings import nearest

PAGE_TOKENS = 16
"""SGLang's own default is a page of one token, which makes an event and a hash of every token."""

_FLAGS = {
    "context_length": "--context-length",
    "page_size": "--kv-cache-block-size",
    "tp_size": "--tensor-parallel-size",
    "base_gpu_id": "--base-gpu-id",
    "nnodes": "--num-nodes",
    "node_rank": "--node-rank",
    "dist_init_addr": "--leader-addr",
    "speculative_algorithm": "--draft-model",
    "speculative_draft_model_path": "--draft-model",
    "speculative_num_steps": "--draft-tokens",
    "speculative_eagle_topk": "--draft-model",
    "speculative_ngram_max_bfs_breadth": "--draft-model",
    "speculative_num_draft_tokens": "--draft-tokens",
}
_FIXED = {"incremental_streaming_output": True}
"""How this worker reads SGLang's answers."""


def server_arguments(spec: EngineSpec, *, sockets: Path) -> Any:
    """A `ServerArgs`. Flags win over the file of `--extra-engine-args`; neither may contradict a flag of dynamo.

    Loads nothing. KV events are published on ipc sockets in the folder `sockets` unless the user configured them.
    """
    if spec.model is None:
        raise EngineError("SGLang needs a model: a folder, a GGUF file or a Hugging Face id")
    parser = _SglangParser(prog="out=sglang --", add_help=False, allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    extra = _extra(parser, spec.extra_engine_args)
    asked = _from_flags(spec)
    parser.set_defaults(**{**_defaults(spec, sockets), **asked, **extra})
    try:
        parsed = parser.parse_args(["--model-path", str(spec.model.path), *spec.arguments])
        if getattr(parsed, "config", None):
            raise EngineError("SGLang's --config is not read here; give the same file to --extra-engine-args")
        _complete(parsed)
        if parsed.disaggregation_mode not in ROLES:
            raise EngineError(f"--disaggregation-mode must be {', '.join(ROLES)}, not {parsed.disaggregation_mode}")
        args = ServerArgs.from_cli_args(parsed)
    except (ValueError, TypeError) as error:
        raise EngineError(f"SGLang's arguments: {error}") from error
    for name, value in {**asked, **_FIXED}.items():
        if getattr(args, name) != value:
            said = _FLAGS.get(name, "this worker")
            raise EngineError(f"{said} says {value}, SGLang's argument {name} says {getattr(args, name)}: give one")
    return args


def resolved(args: Any) -> dict[str, Any]:
    """What SGLang made of its arguments when it started; up to 0.5.18 it writes that into the fields themselves."""
    made: dict[str, Any] = args.resolved_dict() if hasattr(args, "resolved_dict") else dataclasses.asdict(args)
    return made


class _SglangParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise EngineError(f"SGLang: {message}")


def _extra(parser: argparse.ArgumentParser, given: dict[str, Any]) -> dict[str, Any]:
    """The file's arguments by the names of the fields; objects for arguments that are JSON texts become such."""
    actions = {action.dest: action for action in parser._actions}
    extra = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in actions:
            raise EngineError(f"--extra-engine-args: SGLang has no argument '{name}'{nearest(name, _names(actions))}")
        is_text = actions[name].type in (str, None)
        extra[name] = json.dumps(value) if isinstance(value, dict) and is_text else value
    return extra


def _names(actions: Iterable[str]) -> list[str]:
    return [name for name in actions if name != "config"]


def _from_flags(spec: EngineSpec) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if spec.context_length is not None:
        asked["context_length"] = spec.context_length
    if spec.kv_cache_block_size is not None:
        asked["page_size"] = spec.kv_cache_block_size
    if spec.tensor_parallel_size != 1:
        asked["tp_size"] = spec.tensor_parallel_size
    if spec.base_gpu_id:
        asked["base_gpu_id"] = spec.base_gpu_id
    if spec.guesses:
        asked |= _speculation(spec)
    if spec.num_nodes > 1:
        asked |= {"nnodes": spec.num_nodes, "node_rank": spec.node_rank, "dist_init_addr": spec.leader_addr}
        if not (spec.leader_addr or "").rpartition(":")[2].isdigit():
            raise EngineError(f"--leader-addr must be HOST:PORT for SGLang, not {spec.leader_addr}")
    return asked


def _speculation(spec: EngineSpec) -> dict[str, Any]:
    """One chain of tokens: trees need pages of one token. SGLang counts the token that it samples itself too."""
    if spec.draft is None:
        how: dict[str, Any] = {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 1}
    else:
        how = {
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": str(spec.draft.path),
            "speculative_num_steps": spec.guesses,
            "speculative_eagle_topk": 1,
        }
    return {**how, "speculative_num_draft_tokens": spec.guesses + 1}


def _defaults(spec: EngineSpec, sockets: Path) -> dict[str, Any]:
    defaults = {
        **_FIXED,
        "page_size": PAGE_TOKENS,
        "served_model_name": spec.model_name or None,
        # Otherwise a small model may write any amount of whitespace into guided JSON.
        "constrained_json_disable_any_whitespace": True,
    }
    if spec.model_config is not None:
        defaults["tokenizer_path"] = str(spec.model_config.path)
    if spec.kv_events:
        defaults["kv_events_config"] = json.dumps(
            {
                "publisher": "zmq",
                # SGLang adds a rank's number to a name that contains "inproc", and refuses other names for several.
                "endpoint": f"ipc://{sockets}/inproc-events",
                "replay_endpoint": f"ipc://{sockets}/inproc-replay",
                "format": "dynamo",
            }
        )
    return defaults


def _complete(parsed: argparse.Namespace) -> None:
    """What depends on other arguments."""
    if parsed.disable_radix_cache and "inproc-events" in (parsed.kv_events_config or ""):
        parsed.kv_events_config = None
    if parsed.disaggregation_mode == "agg":  # ai-dynamo's name
        parsed.disaggregation_mode = "null"
    if parsed.constrained_json_whitespace_pattern:
        parsed.constrained_json_disable_any_whitespace = False
    # SGLang compiles grammars with its tokenizer, and needs it for nothing else.
    parsed.skip_tokenizer_init = parsed.skip_tokenizer_init or parsed.grammar_backend == "none"
