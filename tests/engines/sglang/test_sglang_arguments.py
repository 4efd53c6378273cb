"""SGLang's arguments, read before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.sglang.arguments import server_arguments
from dynamo.model import LocalModel, bundled

FOLDER = bundled()


def arguments(*flags: str, **fields: Any) -> Any:
    spec = EngineSpec(
        model=LocalModel(source="some", path=FOLDER), model_name="served", arguments=list(flags), **fields
    )
    return server_arguments(spec, sockets=Path("/tmp/sockets"))


def test_the_model_and_its_name_come_from_dynamo() -> None:
    made = arguments()
    assert (made.model_path, made.served_model_name) == (str(FOLDER), "served")
    assert made.incremental_streaming_output
    assert not made.skip_tokenizer_init
    assert made.page_size == 16


def test_kv_events_are_published_on_sockets_of_our_own() -> None:
    events = json.loads(arguments().kv_events_config)
    assert events["publisher"] == "zmq"
    assert events["endpoint"].startswith("ipc:///tmp/sockets/")


@pytest.mark.parametrize(("flags", "fields"), [(["--disable-radix-cache"], {}), ([], {"disable_kv_routing": True})])
def test_without_a_prefix_cache_or_routing_there_are_no_kv_events(flags: list[str], fields: dict[str, Any]) -> None:
    assert arguments(*flags, **fields).kv_events_config is None


def test_every_flag_of_sglang_is_passed_on() -> None:
    made = arguments("--max-running-requests", "7", "--trust-remote-code", "--dp-size=2")
    assert (made.max_running_requests, made.trust_remote_code, made.dp_size) == (7, True, 2)


def test_flags_win_over_the_file_of_arguments() -> None:
    made = arguments("--max-running-requests", "7", extra_engine_args={"max-running-requests": 8, "pp_size": 2})
    assert (made.max_running_requests, made.pp_size) == (7, 2)


def test_an_object_in_the_file_becomes_the_json_text_that_sglang_takes() -> None:
    made = arguments(extra_engine_args={"json_model_override_args": {"a": 1}})
    assert json.loads(made.json_model_override_args) == {"a": 1}


def test_flags_of_dynamo_become_those_of_sglang() -> None:
    made = arguments(
        context_length=256, kv_cache_block_size=64, tensor_parallel_size=4, base_gpu_id=4, num_nodes=2, node_rank=1,
        leader_addr="10.1.2.3:6539",
    )  # fmt: skip
    assert (made.context_length, made.page_size, made.tp_size, made.base_gpu_id) == (256, 64, 4, 4)
    assert (made.nnodes, made.node_rank, made.dist_init_addr) == (2, 1, "10.1.2.3:6539")


def test_a_draft_model_guesses_one_chain_of_tokens() -> None:
    made = arguments(draft_model_path="small", draft=LocalModel(source="small", path=Path("/small")), draft_tokens=3)
    assert (made.speculative_algorithm, made.speculative_draft_model_path) == ("STANDALONE", "/small")
    assert (made.speculative_num_steps, made.speculative_eagle_topk, made.speculative_num_draft_tokens) == (3, 1, 4)


def test_n_grams_of_the_prompt_guess_one_chain_of_tokens() -> None:
    made = arguments(draft_model_path="ngram")
    assert (made.speculative_algorithm, made.speculative_ngram_max_bfs_breadth) == ("NGRAM", 1)
    assert (made.speculative_draft_model_path, made.speculative_num_draft_tokens) == (None, 5)


def test_guided_decoding_is_on_unless_it_is_switched_off() -> None:
    assert not arguments("--grammar-backend", "xgrammar").skip_tokenizer_init
    assert arguments("--grammar-backend", "none").skip_tokenizer_init
    assert arguments("--skip-tokenizer-init").skip_tokenizer_init


def test_guided_json_has_no_whitespace_unless_a_pattern_is_given() -> None:
    assert arguments().constrained_json_disable_any_whitespace
    assert not arguments("--constrained-json-whitespace-pattern", " ?").constrained_json_disable_any_whitespace


@pytest.mark.parametrize(
    ("flags", "fields", "message"),
    [
        (["--max-runing-requests", "5"], {}, "--max-runing-requests"),
        (["--max-running", "5"], {}, "--max-running"),
        (["--max-running-requests", "many"], {}, "max-running-requests"),
        (["stray"], {}, "stray"),
        (["--config", "a.yaml"], {}, "--extra-engine-args"),
        ([], {"extra_engine_args": {"context_lenght": 5}}, "did you mean 'context_length'"),
        ([], {"extra_engine_args": {"incremental_streaming_output": False}}, "this worker says True"),
        (["--context-length", "128"], {"context_length": 256}, "--context-length says 256"),
        ([], {"num_nodes": 2, "leader_addr": "host"}, "HOST:PORT"),
        (["--speculative-algorithm", "EAGLE"], {"draft_model_path": "ngram"}, "--draft-model says NGRAM"),
    ],
)
def test_wrong_arguments_are_named(flags: list[str], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        arguments(*flags, **fields)
