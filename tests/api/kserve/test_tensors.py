"""Tensor models over the KServe protocol, and the bytes of tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols.card import ModelCard, ModelInput, ModelType
from dynamo.protocols.errors import InvalidRequest
from support.toys import Live

pytest.importorskip("grpc", reason="gRPC is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")
grpcclient = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")
from tritonclient.grpc import InferInput, model_config_pb2  # noqa: E402
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

from dynamo.api.kserve import datatypes  # noqa: E402

ARRAYS = [
    np.array([[True], [False]]),
    *(np.array([[0, 1], [2, 3]], dtype=kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)),
    *(np.array([-1, 2], dtype=kind) for kind in (np.int8, np.int16, np.int32, np.int64)),
    np.array([0.5, -2.0], dtype=np.float32),
    np.array([1e-300], dtype=np.float64),
    np.array([b"", b"bytes\x00\xff"], dtype=object),
]


async def echo(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    given = request["parameters"]
    if "broken" in given:
        request["tensors"][0]["data"]["values"] = []
    for _ in range(given.get("times", {"int64": 1})["int64"]):
        yield {"model": request["model"], "tensors": request["tensors"], "parameters": given}


def card(**fields: Any) -> ModelCard:
    return ModelCard(
        name="echo", model_type=ModelType.TensorBased.value, model_input=ModelInput.Tensor, **fields
    )  # fmt: skip


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    async with Live(kserve_grpc_server=True, grpc_metrics_port=0) as live:
        await live.serve(echo, card())
        assert live.server.grpc
        async with grpcclient.InferenceServerClient(live.server.grpc.address) as client:
            yield client


def as_input(name: str, values: Any) -> InferInput:
    tensor = InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
    tensor.set_data_from_numpy(values)
    return tensor


async def test_tensors_of_every_type_reach_a_worker_and_come_back(client: Any) -> None:
    inputs = [as_input(f"input{at}", values) for at, values in enumerate(ARRAYS)]
    answer = await client.infer("echo", inputs, parameters={"flag": True, "n": 3, "word": "w"})
    for at, values in enumerate(ARRAYS):
        back = answer.as_numpy(f"input{at}")
        assert back.dtype == values.dtype
        assert back.tolist() == values.tolist()
    parameters = answer.get_response().parameters
    assert (parameters["flag"].bool_param, parameters["n"].int64_param) == (True, 3)
    assert parameters["word"].string_param == "w"


async def test_a_shape_of_a_million_sizes_is_refused_at_once(client: Any) -> None:
    tensor = InferInput("input", [1 << 60] * 1_000_000, "UINT8")
    tensor._raw_content = b""
    with pytest.raises(InferenceServerException, match="1000000 dimensions") as raised:
        await client.infer("echo", [tensor])
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"


async def test_several_responses_need_a_stream(client: Any) -> None:
    inputs = [as_input("input", np.array([1], dtype=np.int32))]

    async def sent() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "echo", "inputs": inputs, "parameters": {"times": 3}}

    assert len([result async for result, error in client.stream_infer(sent()) if not error]) == 3
    with pytest.raises(InferenceServerException, match="needs ModelStreamInfer"):
        await client.infer("echo", inputs, parameters={"times": 3})
    with pytest.raises(InferenceServerException, match="without a response"):
        await client.infer("echo", inputs, parameters={"times": 0})


async def test_an_object_that_a_generator_changes_and_yields_again_is_read_each_time() -> None:
    async def counting(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        response = {"tensors": request["tensors"]}
        for number in range(20):
            response["model"] = f"echo-{number}"
            yield response

    async def sent() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "echo", "inputs": [as_input("input", np.array([1], dtype=np.int32))]}

    async with Live(kserve_grpc_server=True, grpc_metrics_port=0) as live:
        await live.serve(counting, card())
        assert live.server.grpc
        async with grpcclient.InferenceServerClient(live.server.grpc.address) as client:
            names = [result.get_response().model_name async for result, _ in client.stream_infer(sent())]
    assert names == [f"echo-{number}" for number in range(20)]


async def test_what_a_worker_gives_that_is_no_tensor_is_an_error(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="has 0 values for shape"):
        await client.infer("echo", [as_input("input", np.array([1], dtype=np.int32))], parameters={"broken": True})


async def test_the_configuration_is_the_worker_s() -> None:
    described = {
        "name": "echo",
        "inputs": [{"name": "flag", "data_type": "Bool", "shape": [1]}],
        "outputs": [{"name": "result", "data_type": "Bytes", "shape": [-1]}],
    }
    triton = model_config_pb2.ModelConfig(name="echo", platform="custom", max_batch_size=8)
    triton.input.add(name="input", data_type=model_config_pb2.TYPE_INT32, dims=[-1])
    own = {"name": "", "inputs": [], "outputs": [], "triton_model_config": triton.SerializeToString()}
    configs = []
    for given_config in (described, own, None):
        async with Live(kserve_grpc_server=True, grpc_metrics_port=0) as live:
            await live.serve(echo, card(tensor_model_config=given_config))
            assert live.server.grpc
            async with grpcclient.InferenceServerClient(live.server.grpc.address) as client:
                if given_config is None:
                    with pytest.raises(InferenceServerException, match="not found"):
                        await client.get_model_config("echo")
                else:
                    configs.append((await client.get_model_config("echo")).config)
    assert (configs[0].platform, configs[0].backend) == ("dynamo", "dynamo")
    assert [(each.name, each.data_type, list(each.dims)) for each in configs[0].input] == [("flag", 1, [1])]
    assert configs[1] == triton


@given(kind=st.sampled_from(list(datatypes.BY_NAME.values())), raw=st.binary(max_size=64))
def test_any_bytes_are_elements_or_a_mistake_of_the_client(kind: datatypes.DataType, raw: bytes) -> None:
    try:
        values = datatypes.from_raw(kind, raw, "input")
    except InvalidRequest:
        return
    again = datatypes.from_raw(kind, datatypes.to_raw(kind, values), "input")
    assert np.array_equal(np.array(again, dtype=object), np.array(values, dtype=object)) or kind.typecode in "fd"


def test_the_compiled_protocol_is_that_of_its_source(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    source = Path(datatypes.__file__).parent
    compiled = tmp_path / "inference.binpb"
    options = [f"-I{source}", f"--descriptor_set_out={compiled}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, "inference.proto"], check=True)
    assert compiled.read_bytes() == (source / "inference.binpb").read_bytes()
