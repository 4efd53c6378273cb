"""Some of SGLang's arguments, with their names, flags and defaults."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

ALIASES = {
    "model_path": ("--model",),
    "tp_size": ("--tensor-parallel-size",),
    "pp_size": ("--pipeline-parallel-size",),
    "dp_size": ("--data-parallel-size",),
    "dist_init_addr": ("--nccl-init-addr",),
    "speculative_draft_model_path": ("--speculative-draft-model",),
}
INTEGERS = {
    "context_length", "max_running_requests", "max_total_tokens", "page_size", "speculative_num_steps",
    "speculative_eagle_topk", "speculative_num_draft_tokens",
}  # fmt: skip


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    tokenizer_path: str | None = None
    skip_tokenizer_init: bool = False
    served_model_name: str | None = None
    context_length: int | None = None
    trust_remote_code: bool = False
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    max_prefill_tokens: int = 16384
    page_size: int | None = None
    disable_radix_cache: bool = False
    stream_interval: int = 1
    incremental_streaming_output: bool = False
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    attn_dp_size: int = 1
    base_gpu_id: int = 0
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None
    kv_events_config: str | None = None
    enable_metrics: bool = False
    attention_backend: str | None = None
    sampling_backend: str | None = None
    mem_fraction_static: float | None = None
    disable_prefill_cuda_graph: bool = False
    enable_trace: bool = False
    log_requests: bool = False
    crash_dump_folder: str | None = None
    enable_deterministic_inference: bool = False
    constrained_json_whitespace_pattern: str | None = None
    constrained_json_disable_any_whitespace: bool = False
    grammar_backend: str | None = None
    kv_cache_dtype: str = "auto"
    disaggregation_mode: str = "null"
    disaggregation_transfer_backend: str = "mooncake"
    disaggregation_bootstrap_port: int = 8998
    json_model_override_args: str = "{}"
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_ngram_max_bfs_breadth: int = 10
    log_level: str = "info"

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        for field in dataclasses.fields(ServerArgs):
            flag = "--" + field.name.replace("_", "-")
            names: list[Any] = [flag, *ALIASES.get(field.name, ())]
            if field.default is False:
                parser.add_argument(*names, dest=field.name, action="store_true")
                continue
            kind: Any = int if field.name in INTEGERS or isinstance(field.default, int) else str
            if field.name == "mem_fraction_static":
                kind = float
            required = field.default is dataclasses.MISSING
            default = None if required else field.default
            parser.add_argument(*names, dest=field.name, type=kind, default=default, required=required)
        parser.add_argument("--config", type=str)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(cls)})

    def resolved_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"max_running_requests": self.max_running_requests or 64}
