"""vLLM's arguments, read before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.usage.usage_lib import UsageContext

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.arguments import engine_arguments
from dynamo.engines.vllm.environment import Build, prepare
from dynamo.model import LocalModel, bundled

FOLDER = bundled()


def arguments(*flags: str, cpu: bool = True, **fields: Any) -> Any:
    spec = EngineSpec(
        model=LocalModel(source="some", path=FOLDER), model_name="served", arguments=list(flags), **fields
    )
    return engine_arguments(spec, cpu=cpu, sockets=Path("/tmp/sockets"))


def test_the_model_and_its_name_come_from_dynamo() -> None:
    made = arguments()
    assert (made.model, made.served_model_name) == (str(FOLDER), ["served"])
    assert made.kv_events_config.enable_kv_cache_events
    assert made.kv_events_config.endpoint.startswith("ipc:///tmp/sockets/")


def test_every_flag_of_vllm_is_passed_on() -> None:
    made = arguments("--max-num-seqs", "7", "--enable_lora", "--speculative-config", '{"method": "ngram"}')
    assert (made.max_num_seqs, made.enable_lora, made.speculative_config) == (7, True, {"method": "ngram"})


def test_flags_win_over_the_file_of_arguments() -> None:
    made = arguments("--max-num-seqs", "7", extra_engine_args={"max-num-seqs": 8, "max_num_batched_tokens": 512})
    assert (made.max_num_seqs, made.max_num_batched_tokens) == (7, 512)


def test_flags_of_dynamo_become_those_of_vllm() -> None:
    made = arguments(
        context_length=256, kv_cache_block_size=64, tensor_parallel_size=4, num_nodes=2, node_rank=1,
        leader_addr="10.1.2.3:6539",
    )  # fmt: skip
    assert (made.max_model_len, made.block_size, made.tensor_parallel_size) == (256, 64, 4)
    assert (made.nnodes, made.node_rank, made.master_addr, made.master_port) == (2, 1, "10.1.2.3", 6539)


def test_a_draft_model_or_the_prompt_itself_guesses_tokens() -> None:
    small = LocalModel(source="small", path=Path("/small"))
    made = arguments(draft_model_path="small", draft=small, draft_tokens=3, tensor_parallel_size=2)
    assert made.speculative_config == {
        "method": "draft_model", "model": "/small", "draft_tensor_parallel_size": 2, "num_speculative_tokens": 3,
    }  # fmt: skip
    assert arguments(draft_model_path="ngram").speculative_config == {
        "method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, "num_speculative_tokens": 4,
    }  # fmt: skip


def test_a_follower_may_leave_the_layout_to_its_leader() -> None:
    node: dict[str, Any] = {"num_nodes": 2, "node_rank": 1, "leader_addr": "h:1"}
    assert arguments(**node).layout_from_leader
    assert not arguments(**node, tensor_parallel_size=2).layout_from_leader


def test_a_model_config_gives_the_tokenizer_and_the_configuration(tmp_path: Path) -> None:
    made = arguments(model_config=LocalModel(source="config", path=tmp_path))
    assert (made.tokenizer, made.hf_config_path) == (str(tmp_path), str(tmp_path))


def test_a_gguf_file_needs_vllms_plugin(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    spec = EngineSpec(model=LocalModel(source="m", path=file))
    with pytest.raises(EngineError, match="pip install vllm-gguf-plugin"):
        engine_arguments(spec, cpu=True, sockets=tmp_path)


@pytest.mark.parametrize(
    ("flags", "fields", "message"),
    [
        (["--max-modl-len", "5"], {}, "--max-modl-len"),
        (["--max-num-seqs", "many"], {}, "max-num-seqs"),
        ([], {"extra_engine_args": {"max_modl_len": 5}}, "did you mean 'max_model_len'"),
        (["--max-model-len", "128"], {"context_length": 256}, "--context-length says 256"),
        (["--speculative-config", '{"method": "eagle"}'], {"draft_model_path": "ngram"}, "--draft-model says"),
        ([], {"kv_cache_block_size": 16}, "32 tokens or a multiple, not 16"),
        ([], {"num_nodes": 2, "leader_addr": "host:port"}, "--leader-addr"),
        ([], {"num_nodes": 2, "leader_addr": "h:1"}, "--tensor-parallel-size that is a multiple of 2"),
        ([], {"num_nodes": 2, "node_rank": 1, "tensor_parallel_size": 3, "leader_addr": "h:1"}, "a multiple of 2"),
    ],
)
def test_wrong_arguments_are_named(flags: list[str], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        arguments(*flags, **fields)


def test_cpus_get_their_own_defaults() -> None:
    on_cpu, on_gpu = arguments(), arguments(cpu=False)
    assert (on_cpu.enforce_eager, on_cpu.block_size, on_cpu.kv_cache_memory_bytes) == (True, 32, 1 << 30)
    assert (on_gpu.enforce_eager, on_gpu.kv_cache_memory_bytes) == (False, None)
    assert arguments("--block-size", "64").block_size == 64


def test_half_precision_is_computed_in_full_on_cpus(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    spec = EngineSpec(model=LocalModel(source="m", path=tmp_path))
    assert engine_arguments(spec, cpu=True, sockets=tmp_path).dtype == "float32"
    assert engine_arguments(spec, cpu=False, sockets=tmp_path).dtype == "auto"


def test_without_a_prefix_cache_there_are_no_kv_events() -> None:
    assert arguments("--no-enable-prefix-caching").kv_events_config is None


def test_events_that_are_not_read_are_not_made_unless_vllm_s_own_flag_asks_for_them() -> None:
    assert arguments(disable_kv_routing=True).kv_events_config is None
    own = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'
    assert arguments("--kv-events-config", own, disable_kv_routing=True).kv_events_config.endpoint == "tcp://*:5557"


def test_the_environment_is_completed_and_never_overwritten() -> None:
    environ = {"VLLM_CPU_OMP_THREADS_BIND": "0-3", "VLLM_NO_USAGE_STATS": "0"}
    prepare(environ, Build("0.32.0", cpu=True), [])
    assert environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert environ["VLLM_NO_USAGE_STATS"] == "0"
    assert environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert environ["TORCHDYNAMO_DISABLE"] == "1"
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_gpus_and_models_on_the_hub_are_left_alone() -> None:
    environ: dict[str, str] = {}
    prepare(environ, Build("0.24.0", cpu=False), ["--max-num-seqs", "7", "--speculative-config", "{}"])
    assert "TORCHDYNAMO_DISABLE" not in environ
    assert "HF_HUB_OFFLINE" not in environ


def test_guided_json_has_no_whitespace_unless_the_user_configured_it() -> None:
    def config(*flags: str, **fields: Any) -> Any:
        return arguments("--kv-cache-memory-bytes", "64M", *flags, **fields).create_engine_config()

    unset = config().structured_outputs_config
    assert (unset.backend, unset.disable_any_whitespace) == ("auto", True)
    flag = config("--structured-outputs-config", '{"backend": "xgrammar"}').structured_outputs_config
    assert (flag.backend, flag.disable_any_whitespace) == ("xgrammar", False)
    file = config(extra_engine_args={"structured_outputs_config": {"disable_any_whitespace": False}})
    assert not file.structured_outputs_config.disable_any_whitespace


def test_batches_are_as_large_as_those_of_vllms_own_server() -> None:
    made = arguments("--kv-cache-memory-bytes", "64M")
    tokens, sequences = made.get_batch_defaults(1)
    scheduler = made.create_engine_config().scheduler_config
    server = UsageContext.OPENAI_API_SERVER
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (tokens[server], sequences[server])


def test_offloading_is_vllms_own_connector_with_events_that_name_their_tokens() -> None:
    config = arguments("--kv-offload-gb", "1.5", cpu=False).kv_transfer_config
    assert (config.kv_connector, config.kv_role) == ("OffloadingConnector", "kv_both")
    assert config.kv_connector_extra_config == {"cpu_bytes_to_use": 1_500_000_000, "self_describing_kv_events": True}
    assert arguments(cpu=False).kv_transfer_config is None


@pytest.mark.parametrize(
    ("flags", "cpu", "sentence"),
    [
        (["--kv-offload-gb", "1"], True, "--kv-offload-gb needs a GPU: on CPUs vLLM keeps its whole KV cache in host"),
        (["--kv-offload-gb", "-1"], False, "--kv-offload-gb must be a number of gigabytes above 0, not -1"),
        (["--kv-offload-gb", "nan"], False, "--kv-offload-gb must be a number of gigabytes above 0, not nan"),
        (
            ["--kv-offload-gb", "1", "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'],
            False,
            "--kv-offload-gb and vLLM's --kv-transfer-config both choose a connector",
        ),
    ],
)
def test_offloading_that_cannot_work_is_refused_in_one_sentence(flags: list[str], cpu: bool, sentence: str) -> None:
    with pytest.raises(EngineError) as refused:
        arguments(*flags, cpu=cpu)
    assert str(refused.value).startswith(sentence)
