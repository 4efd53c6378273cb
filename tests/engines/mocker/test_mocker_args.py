from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines.mocker import MockerArgs, ReasoningArgs
from dynamo.protocols.errors import InvalidArgument


def test_defaults_are_the_published_ones() -> None:
    args = MockerArgs.from_json(b"{}")
    assert (args.num_gpu_blocks, args.block_size, args.max_num_seqs, args.max_num_batched_tokens) == (
        16384,
        64,
        256,
        8192,
    )
    assert args.enable_prefix_caching
    assert args.enable_chunked_prefill
    assert (args.speedup_ratio, args.dp_size, args.watermark, args.preemption_mode) == (1.0, 1, 0.01, "lifo")


def test_every_argument_is_read_from_json() -> None:
    args = MockerArgs.from_json(
        b'{"engine_type":"vllm","block_size":16,"num_gpu_blocks":8,"max_model_len":100,"max_num_seqs":2,'
        b'"max_num_batched_tokens":32,"enable_prefix_caching":true,"enable_chunked_prefill":false,'
        b'"preemption_mode":"fifo","watermark":0.5,"speedup_ratio":10,"decode_speedup_ratio":2.5,"dp_size":4,'
        b'"startup_time":1.5,"disaggregation_mode":"decode","kv_transfer_bandwidth":9,"kv_bytes_per_token":7,'
        b'"kv_transfer_timing_mode":"destination_missing",'
        b'"reasoning":{"start_thinking_token_id":1,"end_thinking_token_id":2,"thinking_ratio":0.5}}'
    )
    assert args == MockerArgs(
        block_size=16,
        num_gpu_blocks=8,
        max_model_len=100,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        enable_prefix_caching=True,
        enable_chunked_prefill=False,
        preemption_mode="fifo",
        watermark=0.5,
        speedup_ratio=10.0,
        decode_speedup_ratio=2.5,
        dp_size=4,
        startup_time=1.5,
        disaggregation_mode="decode",
        kv_transfer_bandwidth=9.0,
        kv_bytes_per_token=7,
        kv_transfer_timing_mode="destination_missing",
        reasoning=ReasoningArgs(start_thinking_token_id=1, end_thinking_token_id=2, thinking_ratio=0.5),
    )


def test_other_spellings_of_an_argument_are_understood() -> None:
    args = MockerArgs.from_json({"num_gpu_blocks_override": 7, "data_parallel_size": 2, "is_prefill": True})
    assert (args.num_gpu_blocks, args.dp_size, args.disaggregation_mode) == (7, 2, "prefill")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"blocksize": 1}, "unknown mocker argument 'blocksize'"),
        ({"aic_system": "h200_sxm"}, "'aic_system' is not implemented"),
        ({"kv_cache_dtype": "fp8"}, "'kv_cache_dtype' is not implemented"),
        ({"engine_type": "sglang"}, "'engine_type'"),
        ({"block_size": 0}, "'block_size': expected `int` >= 1"),
        ({"block_size": 2**31}, "'block_size': expected `int` <= 2147483647"),
        ({"num_gpu_blocks": 10**30}, "'num_gpu_blocks': expected `int` <= 16777216"),
        ({"dp_size": 1025}, "'dp_size': expected `int` <= 1024"),
        ({"max_model_len": 10**30}, "'max_model_len'"),
        ({"block_size": "64"}, "'block_size': expected `int`, got `str`"),
        ({"block_size": True}, "'block_size': expected `int`, got `bool`"),
        ({"block_size": 1.5}, "'block_size': expected `int`, got `float`"),
        ({"max_model_len": 1}, "'max_model_len'"),
        ({"speedup_ratio": -1}, "'speedup_ratio': expected `float` >= 0"),
        ({"speedup_ratio": float("nan")}, "'speedup_ratio'"),
        ({"speedup_ratio": float("inf")}, "'speedup_ratio': must be finite"),
        ({"watermark": 1.0}, "'watermark'"),
        ({"preemption_mode": "random"}, "'preemption_mode'"),
        ({"enable_prefix_caching": 1}, "'enable_prefix_caching': expected `bool`"),
        ({"reasoning": {"thinking_ratio": 2}}, "'reasoning"),
        ({"reasoning": {"start_thinking_token_id": 2**40}}, "'reasoning.start_thinking_token_id'"),
        ({"dp_size": 1, "data_parallel_size": 1}, "another name for 'dp_size'"),
        ({"is_prefill": True, "is_decode": True}, "exclude each other"),
        ({"is_prefill": True, "enable_prefix_caching": False}, "leave prefix caching on"),
        ({"is_prefill": "yes"}, "'is_prefill': expected `bool`"),
        ({"is_prefill": True, "disaggregation_mode": "decode"}, "contradicts"),
        ({1: 2}, "names must be strings"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "must be a JSON object, not list"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(source: Any, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        MockerArgs.from_json(source)
    assert named in caught.value.message
    assert "\n" not in caught.value.message


VALUES = st.integers() | st.floats() | st.booleans() | st.none() | st.sampled_from(["lifo", "vllm", "", "é"])


@given(st.binary() | st.dictionaries(st.sampled_from([*MockerArgs.__struct_fields__, "x"]), VALUES))
def test_anything_is_either_read_or_refused(source: Any) -> None:
    try:
        MockerArgs.from_json(source)
    except InvalidArgument:
        pass


@pytest.mark.parametrize(
    ("args", "limit"),
    [
        (MockerArgs(num_gpu_blocks=4, block_size=8), 33),
        (MockerArgs(num_gpu_blocks=4, block_size=8, max_model_len=20), 20),
        (MockerArgs(num_gpu_blocks=4, block_size=8, max_num_batched_tokens=10), 33),
        (MockerArgs(num_gpu_blocks=4, block_size=8, max_num_batched_tokens=10, enable_chunked_prefill=False), 11),
    ],
)
def test_the_context_limit_is_what_one_request_alone_can_reach(args: MockerArgs, limit: int) -> None:
    assert args.context_limit == limit
