"""The arguments of a vLLM engine: its own flags, `--extra-engine-args`, and what dynamo's flags say."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any, NoReturn

from vllm.config import KVEventsConfig, StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.connector import Mode, add_mode, offloading, transferring
from dynamo.model import LocalModel
from dynamo.settings import nearest

CPU_BLOCK = 32
"""On CPUs the size of a KV block must be a multiple of this; vLLM's own default of 128 makes coarse prefixes."""
CPU_CACHE_BYTES = 1 << 30


class EngineArguments(AsyncEngineArgs):  # type: ignore[misc]
    disaggregation_mode: Mode = "agg"
    layout_from_leader = False
    """A follower that was not told over how many processes the engine is spread."""
    compact_json = False
    """Guided JSON has no whitespace, of which a small model may write any amount."""

    def create_engine_config(self, usage_context: Any = None, **options: Any) -> Any:
        """For a server: for any other use but `LLM` vLLM has much smaller batches by default."""
        config = super().create_engine_config(UsageContext.OPENAI_API_SERVER, **options)
        if self.compact_json:
            # Set here, because vLLM's check rejects it with the backend "auto"; all that "auto" prefers can do it.
            outputs, speculation = config.structured_outputs_config, config.speculative_config
            outputs.disable_any_whitespace = True
            if speculation is not None and speculation.method != "ngram":
                # With a draft model vLLM makes a second configuration of this one, and checks it again.
                outputs.backend = "xgrammar"
        return config


def engine_arguments(spec: EngineSpec, *, cpu: bool, sockets: Path) -> EngineArguments:
    """Flags win over the file of `--extra-engine-args`; neither may contradict a flag of dynamo. Loads nothing.

    KV events are published on ipc sockets in the folder `sockets` unless the user configured them.
    """
    extra = {name.replace("-", "_"): value for name, value in spec.extra_engine_args.items()}
    known = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
    for name in extra:
        if name not in known:
            raise EngineError(f"--extra-engine-args: vLLM has no argument '{name}'{nearest(name, known)}")
    asked = _from_flags(spec)
    parser = EngineArguments.add_cli_args(_VllmParser(prog="out=vllm --", add_help=True))
    parser.add_argument("--kv-offload-gb", type=float, default=0.0)
    add_mode(parser)
    unconfigured = StructuredOutputsConfig()
    parser.set_defaults(structured_outputs_config=unconfigured)
    parser.set_defaults(**{**_defaults(spec, cpu=cpu, sockets=sockets), **_files(spec), **asked, **extra})
    try:
        parsed = parser.parse_args(spec.arguments)
        args: EngineArguments = EngineArguments.from_cli_args(parsed)
    except (ValueError, TypeError) as error:
        raise EngineError(f"vLLM's arguments: {error}") from error
    args.compact_json = args.structured_outputs_config is unconfigured
    for name, value in asked.items():
        if getattr(args, name) != value:
            flag = _FLAGS[name]
            raise EngineError(f"{flag} says {value}, vLLM's argument {name} says {getattr(args, name)}: give one")
    processes = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    args.layout_from_leader = processes == 1 and args.nnodes > 1 and args.node_rank > 0
    if processes % args.nnodes and not args.layout_from_leader:
        raise EngineError(
            f"--num-nodes {args.nnodes} needs a --tensor-parallel-size that is a multiple of "
            f"{args.nnodes}: here vLLM has {processes} process{'es' if processes > 1 else ''}"
        )
    if parsed.kv_offload_gb:
        args.kv_transfer_config = offloading(parsed.kv_offload_gb, cpu=cpu, configured=args.kv_transfer_config)
    args.disaggregation_mode = parsed.disaggregation_mode
    if parsed.disaggregation_mode != "agg":
        if parsed.kv_offload_gb:
            raise EngineError(
                "--kv-offload-gb and --disaggregation-mode both choose a connector: name both inside a MultiConnector, "
                "with --kv-transfer-config"
            )
        args.kv_transfer_config = transferring(parsed.disaggregation_mode, cpu=cpu, configured=args.kv_transfer_config)
    unread = not spec.kv_events or args.enable_prefix_caching is False
    if unread and sockets.as_posix() in args.kv_events_config.endpoint:
        args.kv_events_config = None
    if cpu and args.block_size is not None and args.block_size % CPU_BLOCK:
        raise EngineError(f"vLLM on CPUs needs KV blocks of {CPU_BLOCK} tokens or a multiple, not {args.block_size}")
    return args


class _VllmParser(FlexibleArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise EngineError(f"vLLM: {message}")


_FLAGS = {
    "max_model_len": "--context-length",
    "block_size": "--kv-cache-block-size",
    "tensor_parallel_size": "--tensor-parallel-size",
    "nnodes": "--num-nodes",
    "node_rank": "--node-rank",
    "master_addr": "--leader-addr",
    "master_port": "--leader-addr",
    "speculative_config": "--draft-model",
}
_LONGEST_NGRAM = 4
"""Tokens that must have stood there before; vLLM looks for this many, then for fewer, down to two."""


def _from_flags(spec: EngineSpec) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if spec.context_length is not None:
        asked["max_model_len"] = spec.context_length
    if spec.kv_cache_block_size is not None:
        asked["block_size"] = spec.kv_cache_block_size
    if spec.tensor_parallel_size != 1:
        asked["tensor_parallel_size"] = spec.tensor_parallel_size
    if spec.guesses:
        asked["speculative_config"] = _speculation(spec)
    if spec.num_nodes > 1:
        asked |= {"nnodes": spec.num_nodes, "node_rank": spec.node_rank}
        host, colon, port = (spec.leader_addr or "").rpartition(":")
        if not colon:
            host = port
        elif not port.isdigit():
            raise EngineError(f"--leader-addr must be HOST or HOST:PORT, not {spec.leader_addr}")
        else:
            asked["master_port"] = int(port)
        asked["master_addr"] = host.strip("[]")
    return asked


def _speculation(spec: EngineSpec) -> dict[str, Any]:
    if spec.draft is None:
        how: dict[str, Any] = {"method": "ngram", "prompt_lookup_max": _LONGEST_NGRAM, "prompt_lookup_min": 2}
    else:
        how = {"method": "draft_model", "model": str(spec.draft.path)}
        if spec.tensor_parallel_size != 1:
            how["draft_tensor_parallel_size"] = spec.tensor_parallel_size
    return {**how, "num_speculative_tokens": spec.guesses}


def _files(spec: EngineSpec) -> dict[str, Any]:
    if spec.model is None:
        raise EngineError("vLLM needs a model: a folder, a GGUF file or a Hugging Face id")
    if spec.model.is_gguf and importlib.util.find_spec("vllm_gguf_plugin") is None:
        raise EngineError("vLLM reads GGUF files with a plugin: pip install vllm-gguf-plugin, or use out=llamacpp")
    files: dict[str, Any] = {"model": str(spec.model.path)}
    if spec.model_name:
        files["served_model_name"] = [spec.model_name]
    if spec.model_config is not None:
        files |= {"tokenizer": str(spec.model_config.path), "hf_config_path": str(spec.model_config.path)}
    return files


def _defaults(spec: EngineSpec, *, cpu: bool, sockets: Path) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "kv_events_config": KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            # vLLM adds a rank's number to a name that contains "inproc", and rejects other names for several ranks.
            endpoint=f"ipc://{sockets}/inproc-events",
            replay_endpoint=f"ipc://{sockets}/inproc-replay",
        ),
    }
    if cpu:
        defaults |= {"enforce_eager": True, "block_size": CPU_BLOCK, "kv_cache_memory_bytes": CPU_CACHE_BYTES}
        if _is_float16(spec.model_config or spec.model):
            defaults["dtype"] = "float32"  # what CPUs compute fast and every other engine computes exactly
    return defaults


def _is_float16(model: LocalModel | None) -> bool:
    if model is None or model.is_gguf:
        return False
    try:
        config = json.loads((model.path / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "float16" in (config.get("dtype"), config.get("torch_dtype"))
