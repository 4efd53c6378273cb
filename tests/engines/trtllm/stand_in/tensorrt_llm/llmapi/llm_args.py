"""Some of the arguments of `LLM`, by their names and defaults; pydantic models in the real one."""

from __future__ import annotations

from typing import Any


class KvCacheConfig:
    model_fields: dict[str, Any] = {  # noqa: RUF012
        "enable_block_reuse": True,
        "max_tokens": None,
        "free_gpu_memory_fraction": 0.9,
        "host_cache_size": None,
        "event_buffer_max_size": 0,
        "tokens_per_block": 32,
        "dtype": "auto",
    }


class TorchLlmArgs:
    model_fields: dict[str, Any] = {  # noqa: RUF012
        "model": ...,
        "tokenizer": None,
        "skip_tokenizer_init": False,
        "trust_remote_code": False,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": None,
        "enable_attention_dp": False,
        "kv_cache_config": None,
        "enable_chunked_prefill": False,
        "guided_decoding_backend": None,
        "speculative_config": None,
        "max_batch_size": 2048,
        "max_seq_len": None,
        "max_num_tokens": 8192,
        "enable_iter_perf_stats": False,
        "cuda_graph_config": None,
        "cache_transceiver_config": None,
    }


class TrtLlmArgs:
    """The arguments of compiled engines."""

    model_fields: dict[str, Any] = {  # noqa: RUF012
        "model": ...,
        "tokenizer": None,
        "skip_tokenizer_init": False,
        "trust_remote_code": False,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": None,
        "kv_cache_config": None,
        "enable_chunked_prefill": False,
        "guided_decoding_backend": None,
        "speculative_config": None,
        "max_batch_size": None,
        "max_seq_len": None,
        "max_num_tokens": None,
        "cache_transceiver_config": None,
        "enable_build_cache": False,
        "fail_fast_on_attention_window_too_large": False,
    }
