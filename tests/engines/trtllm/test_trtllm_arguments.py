"""TensorRT-LLM's arguments, read before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.trtllm.arguments import llm_arguments
from dynamo.model import LocalModel, bundled

FOLDER = bundled()


def arguments(*flags: str, **fields: Any) -> dict[str, Any]:
    return llm_arguments(EngineSpec(model=LocalModel(source="m", path=FOLDER), arguments=list(flags), **fields))


def test_what_is_not_given_has_defaults_for_a_router() -> None:
    made = arguments()
    assert made["model"] == str(FOLDER)
    assert made["kv_cache_config"] == {"tokens_per_block": 32, "event_buffer_max_size": 8192}
    assert (made["enable_iter_perf_stats"], made["skip_tokenizer_init"]) == (True, True)
    assert made["max_seq_len"] > 0


def test_no_events_are_kept_where_none_are_published() -> None:
    assert "event_buffer_max_size" not in arguments(disable_kv_routing=True)["kv_cache_config"]


def test_fields_are_flags_and_their_values_yaml() -> None:
    made = arguments(
        "--max-batch-size", "64", "--enable_chunked_prefill", "--pp_size=2", "--free-gpu-memory-fraction", "0.8",
        "--kv-cache-config.host-cache-size", "1024", "--speculative-config", "{decoding_type: NGram}",
    )  # fmt: skip
    assert (made["max_batch_size"], made["enable_chunked_prefill"], made["pipeline_parallel_size"]) == (64, True, 2)
    assert made["kv_cache_config"]["free_gpu_memory_fraction"] == 0.8
    assert made["kv_cache_config"]["host_cache_size"] == 1024
    assert made["speculative_config"] == {"decoding_type": "NGram"}


def test_flags_win_over_the_file_of_arguments() -> None:
    file = {"max_batch_size": 8, "max_num_tokens": 512, "kv_cache_config": {"tokens_per_block": 64}}
    made = arguments("--max-batch-size", "7", extra_engine_args=file)
    assert (made["max_batch_size"], made["max_num_tokens"]) == (7, 512)
    assert made["kv_cache_config"] == {"tokens_per_block": 64, "event_buffer_max_size": 8192}


def test_flags_of_dynamo_become_those_of_tensorrt_llm() -> None:
    made = arguments(context_length=128, tensor_parallel_size=4, kv_cache_block_size=64)
    assert (made["max_seq_len"], made["tensor_parallel_size"]) == (128, 4)
    assert made["kv_cache_config"]["tokens_per_block"] == 64


def test_a_backend_for_guided_decoding_keeps_the_tokenizer_it_needs(tmp_path: Path) -> None:
    described_by = LocalModel(source="config", path=tmp_path)
    made = arguments("--guided-decoding-backend", "xgrammar", model_config=described_by)
    assert (made["skip_tokenizer_init"], made["tokenizer"]) == (False, str(tmp_path))
    assert "tokenizer" not in arguments(model_config=described_by)


def compiled(folder: Path, *flags: str, **built: Any) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps({"build_config": built}))
    (folder / "rank0.engine").touch()
    model = LocalModel(source="m", path=folder)
    described_by = LocalModel(source="config", path=FOLDER)
    return llm_arguments(EngineSpec(model=model, model_config=described_by, arguments=list(flags)))


def test_a_compiled_engine_is_run_as_it_was_built(tmp_path: Path) -> None:
    made = compiled(tmp_path, max_seq_len=900, plugin_config={"tokens_per_block": 64})
    assert (made["model"], made["max_seq_len"]) == (str(tmp_path), 900)
    assert made["kv_cache_config"]["tokens_per_block"] == 64
    assert "enable_iter_perf_stats" not in made
    guided = compiled(tmp_path, "--guided-decoding-backend", "xgrammar")
    assert (guided["tokenizer"], guided["kv_cache_config"]["tokens_per_block"]) == (str(FOLDER), 32)


def test_a_compiled_engine_has_arguments_of_its_own(tmp_path: Path) -> None:
    assert compiled(tmp_path, "--fail-fast-on-attention-window-too-large")["fail_fast_on_attention_window_too_large"]
    with pytest.raises(EngineError, match="no argument 'cuda_graph_config'"):
        compiled(tmp_path, "--cuda-graph-config", "{}")


@pytest.mark.parametrize(
    ("flags", "fields", "message"),
    [
        (["--max-bach-size", "5"], {}, "did you mean 'max_batch_size'"),
        (["--kv-cache-config.dtyp", "fp8"], {}, "no argument 'kv_cache_config.dtyp'"),
        (["--speculative-config.a.b", "1"], {}, "as one YAML value"),
        (["--max-batch-size", "{"], {}, "--max-batch-size"),
        (["stray"], {}, "stray"),
        (["--model", "x"], {}, "given by dynamo"),
        ([], {"extra_engine_args": {"max_bach_size": 5}}, "--extra-engine-args: .*did you mean 'max_batch_size'"),
        ([], {"extra_engine_args": {"kv_cache_config": {"dtyp": 1}}}, "kv_cache_config.dtyp"),
        (["--max-seq-len", "64"], {"context_length": 128}, "--context-length says 128"),
        (["--tp-size", "2"], {"tensor_parallel_size": 4}, "--tensor-parallel-size says 4"),
        ([], {"num_nodes": 2}, "trtllm-llmapi-launch"),
    ],
)
def test_wrong_arguments_are_named(flags: list[str], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        arguments(*flags, **fields)


def test_gguf_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    with pytest.raises(EngineError, match="out=llamacpp"):
        llm_arguments(EngineSpec(model=LocalModel(source="m", path=file)))
