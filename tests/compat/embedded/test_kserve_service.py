"""The KServe protocol over a program's own generators."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.grpc import kserve_server
from dynamo.protocols.errors import StartError
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from support.waiting import until

np = pytest.importorskip("numpy", reason="numpy is not installed")
grpcclient = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")
from tritonclient.grpc import InferInput  # noqa: E402

from dynamo.llm import KserveGrpcService, PythonAsyncEngine  # noqa: E402


async def complete(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield {"choices": [{"index": 0, "text": f"{request['prompt']}, indeed", "finish_reason": "stop"}]}


async def double(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    (tensor,) = request["tensors"]
    tensor["data"]["values"] = [2 * value for value in tensor["data"]["values"]]
    yield {"model": request["model"], "tensors": [tensor]}


async def test_generators_are_served_as_text_and_tensor_models() -> None:
    service = KserveGrpcService(port=0, host="127.0.0.1")
    service.add_completions_model("words", "checksum", PythonAsyncEngine(complete, asyncio.get_running_loop()))
    service.add_tensor_model("double", "checksum", PythonAsyncEngine(double))
    assert (service.list_completions_models(), service.list_tensor_models()) == (["words"], ["double"])
    with pytest.raises(ValueError, match="added already"):
        service.add_completions_model("double", "checksum", PythonAsyncEngine(complete))
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        running = asyncio.create_task(service.run(runtime))
        await until(lambda: service.address)
        with pytest.raises(RuntimeError, match="before the service runs"):
            service.remove_tensor_model("double")
        async with grpcclient.InferenceServerClient(service.address) as client:
            prompt = InferInput("text_input", [1], "BYTES")
            prompt.set_data_from_numpy(np.array([b"so"], dtype=object))
            said = await client.infer("words", [prompt])
            assert said.as_numpy("text_output").tolist() == [b"so, indeed"]
            numbers = InferInput("numbers", [2], "INT32")
            numbers.set_data_from_numpy(np.array([1, 2], dtype=np.int32))
            assert (await client.infer("double", [numbers])).as_numpy("numbers").tolist() == [2, 4]
        service.shutdown()
        await running


def test_without_grpc_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import dynamo.llm

    monkeypatch.setitem(sys.modules, "grpc", None)
    for module in ("dynamo.api.kserve.server", "dynamo.compat.embedded.kserve_service"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'dynamo-serving\[kserve\]'"):
        dynamo.llm.KserveGrpcService  # noqa: B018
    frontend: Any = None
    with pytest.raises(StartError, match=r"--kserve-grpc-server needs gRPC .* pip install 'dynamo-serving\[kserve\]'"):
        kserve_server(frontend, FrontendConfig(kserve_grpc_server=True))


def test_grpc_is_one_process() -> None:
    with pytest.raises(ValueError, match="leave out --http-workers"):
        FrontendConfig(kserve_grpc_server=True, workers=2)
