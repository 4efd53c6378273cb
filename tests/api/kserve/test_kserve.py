"""The KServe protocol, with Triton's own client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.protocols.card import ModelCard, ModelInput, ModelType
from dynamo.runtime import Context
from support.stack import Stack
from support.toys import Live, Scripted, toy_card, toy_folder

np = pytest.importorskip("numpy", reason="numpy is not installed")
grpcio = pytest.importorskip("grpc", reason="grpcio is not installed")
pytest.importorskip("grpc.aio")
grpcclient = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")
from tritonclient.grpc import InferInput  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

GRPC = {"kserve_grpc_server": True, "grpc_metrics_port": 0}


def text(prompt: str, **flags: bool) -> list[InferInput]:
    inputs = [InferInput("text_input", [1], "BYTES")]
    inputs[0].set_data_from_numpy(np.array([prompt.encode()], dtype=object))
    for name, value in flags.items():
        flag = InferInput(name, [1], "BOOL")
        flag.set_data_from_numpy(np.array([value]))
        inputs.append(flag)
    return inputs


class Grpc:
    """A frontend with both protocols and a toy model."""

    def __init__(self, live: Live, toy: Scripted, folder: Path) -> None:
        self.live, self.toy, self.folder = live, toy, folder
        assert live.server.grpc
        self.client = grpcclient.InferenceServerClient(live.server.grpc.address)

    async def stream(self, *requests: dict[str, Any]) -> list[Any]:
        """All responses to these requests in one stream; errors are strings."""

        async def sent() -> AsyncIterator[dict[str, Any]]:
            for request in requests:
                yield {"model_name": "org/toy", **request}

        return [error or result async for result, error in self.client.stream_infer(sent())]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture
async def grpc(folder: Path) -> AsyncIterator[Grpc]:
    async with Live(**GRPC) as live:
        toy = Scripted({"STOPS": "one two three four"})
        await live.serve(toy.generate, toy_card(folder, "org/toy"))
        both = Grpc(live, toy, folder)
        yield both
        await both.client.close()


async def test_a_text_model_says_what_it_takes_and_gives(grpc: Grpc) -> None:
    client = grpc.client
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("org/toy")
    assert not await client.is_model_ready("nothing")
    metadata = await client.get_model_metadata("org/toy", as_json=True)
    assert [each["name"] for each in metadata["inputs"]] == ["text_input", "streaming"]
    assert [each["datatype"] for each in metadata["outputs"]] == ["BYTES", "BYTES"]
    config = (await client.get_model_config("org/toy")).config
    assert (config.name, config.platform, config.backend) == ("org/toy", "dynamo", "dynamo")
    assert config.input[1].optional


async def test_a_prompt_is_answered_at_once_or_in_a_stream(grpc: Grpc) -> None:
    whole = await grpc.client.infer("org/toy", text("STOPS"), request_id="seven", parameters={"max_tokens": 40})
    assert whole.as_numpy("text_output").tolist() == [b"one two three four"]
    assert whole.as_numpy("finish_reason").tolist() == [b"stop"]
    assert whole.get_response().id == "seven"
    assert grpc.toy.requests[-1]["stop_conditions"]["max_tokens"] == 40

    request = {"inputs": text("STOPS", streaming=True)}
    parts = await grpc.stream(request, {**request, "parameters": {"max_tokens": 3}}, {"inputs": text("STOPS")})
    ends = [at for at, part in enumerate(parts) if part.get_response().parameters["triton_final_response"].bool_param]
    texts = [part.as_numpy("text_output").tolist()[0].decode() for part in parts]
    reasons = [part.as_numpy("finish_reason").tolist()[0] for part in parts]
    assert "".join(texts[: ends[0] + 1]) == "one two three four"
    assert len(ends) == 3
    assert [reasons[at] for at in ends] == [b"stop", b"length", b"stop"]
    assert texts[-1] == "one two three four"


async def test_typed_contents_are_answered_with_typed_contents(grpc: Grpc) -> None:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="org/toy")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"STOPS")
    response = await grpc.client._client_stub.ModelInfer(request)
    assert [output.contents.bytes_contents[0] for output in response.outputs] == [b"one two three four", b"stop"]
    assert not response.raw_output_contents


async def test_errors_have_the_codes_of_grpc_and_do_not_end_a_stream(grpc: Grpc) -> None:
    cases = [
        ("nothing", text("hi"), {}, "NOT_FOUND", "'nothing' does not exist"),
        ("org/toy", text("hi", streaming=True), {}, "INVALID_ARGUMENT", "needs ModelStreamInfer"),
        ("org/toy", text("hi", colour=True), {}, "INVALID_ARGUMENT", "colour: is not an input"),
        ("org/toy", text("hi")[1:], {}, "INVALID_ARGUMENT", "text_input"),
        ("org/toy", text("hi"), {"max_tokens": -1}, "INVALID_ARGUMENT", "max_tokens"),
    ]
    for model, inputs, parameters, code, why in cases:
        with pytest.raises(InferenceServerException, match=why) as raised:
            await grpc.client.infer(model, inputs, parameters=parameters)
        assert raised.value.status() == f"StatusCode.{code}"
    good = {"inputs": text("STOPS")}
    failed, answered = await grpc.stream({**good, "model_name": "nothing"}, good)
    assert "'nothing' does not exist" in str(failed)
    assert answered.as_numpy("text_output").tolist() == [b"one two three four"]


async def test_requests_with_the_same_id_are_apart_for_the_worker(grpc: Grpc) -> None:
    seen: list[str] = []

    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        seen.append(context.id())
        async for item in grpc.toy.generate(request, context):
            yield item

    await grpc.live.serve(generate, toy_card(grpc.folder, "org/seen"))
    answers = [await grpc.client.infer("org/seen", text("STOPS"), request_id="1\n2") for _ in range(2)]
    assert [answer.get_response().id for answer in answers] == ["1\n2"] * 2
    assert len(set(seen)) == 2
    assert "1\n2" not in seen


async def test_what_a_client_sends_never_makes_an_error_too_long_to_be_sent(grpc: Grpc) -> None:
    from tritonclient.grpc import service_pb2

    with pytest.raises(InferenceServerException, match="nnnn") as raised:
        await grpc.client.infer("n" * 100_000, text("hi"))
    assert raised.value.status() == "StatusCode.NOT_FOUND"
    request = service_pb2.ModelInferRequest(model_name="org/toy")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"STOPS")
    for at in range(1000):
        request.parameters[f"{at} {'é' * 1000}"].string_param = ""
    call = grpc.client._client_stub.ModelInfer(request)
    await call
    assert len(dict(await call.trailing_metadata())["x-dynamo-warning"]) < 8192


async def test_unknown_parameters_are_ignored_and_named(grpc: Grpc) -> None:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="org/toy")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"STOPS")
    request.parameters["colour"].string_param = "red"
    call = grpc.client._client_stub.ModelInfer(request)
    await call
    assert dict(await call.trailing_metadata())["x-dynamo-warning"] == "ignored unknown parameters: colour"


async def test_a_worker_that_takes_text_answers_with_its_own_chunks(grpc: Grpc) -> None:
    async def complete(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        for part in (request["prompt"], "!"):
            yield {"object": "text_completion", "choices": [{"index": 0, "text": part, "finish_reason": None}]}
        yield {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}

    card = ModelCard(name="words", model_type=ModelType.Completions.value, model_input=ModelInput.Text)
    await grpc.live.serve(complete, card, "toy.words.generate")
    whole = await grpc.client.infer("words", text("hello"))
    assert whole.as_numpy("text_output").tolist() == [b"hello!"]
    parts = await grpc.stream({"model_name": "words", "inputs": text("hello", streaming=True)})
    assert [part.as_numpy("text_output").tolist()[0] for part in parts] == [b"hello", b"!", b""]
    assert [part.as_numpy("finish_reason").tolist()[0] for part in parts] == [b"", b"", b"stop"]


async def test_a_client_that_leaves_stops_the_worker(grpc: Grpc) -> None:
    stopped = asyncio.Event()

    async def endless(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        try:
            while True:
                yield {"object": "text_completion", "choices": [{"index": 0, "text": "on ", "finish_reason": None}]}
                await asyncio.sleep(0)
        finally:
            stopped.set()

    card = ModelCard(name="endless", model_type=ModelType.Completions.value, model_input=ModelInput.Text)
    await grpc.live.serve(endless, card, "toy.endless.generate")

    async def sent() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "endless", "inputs": text("go", streaming=True)}
        await asyncio.Event().wait()

    responses = grpc.client.stream_infer(sent())
    await anext(responses)
    responses.cancel()
    await stopped.wait()


async def test_calls_need_the_key_of_the_server(folder: Path) -> None:
    async with Live(**GRPC, api_keys=("sesame",)) as live:
        live.http.headers["Authorization"] = "Bearer sesame"
        await live.serve(Scripted().generate, toy_card(folder, "org/toy"))
        assert live.server.grpc
        async with grpcclient.InferenceServerClient(live.server.grpc.address) as client:
            assert await client.is_server_ready()
            for wrong in ({}, {"authorization": "Bearer open"}):
                with pytest.raises(InferenceServerException, match="API key") as raised:
                    await client.infer("org/toy", text("hi"), headers=wrong)
                assert raised.value.status() == "StatusCode.UNAUTHENTICATED"
            key = {"authorization": "Bearer sesame"}
            assert (await client.infer("org/toy", text("hi"), headers=key)).as_numpy("text_output").size == 1


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelReady", "ModelConfig"])
async def test_a_call_without_a_key_is_refused_before_its_message_is_read(folder: Path, method: str) -> None:
    async with Live(**GRPC, api_keys=("sesame",)) as live:
        assert live.server.grpc
        assert await unread(live.server.grpc.address, method) is grpcio.StatusCode.UNAUTHENTICATED


async def test_a_probe_is_answered_without_its_message(folder: Path) -> None:
    async with Live(**GRPC, api_keys=("sesame",)) as live:
        assert live.server.grpc
        async with grpcio.aio.insecure_channel(live.server.grpc.address) as channel:
            message = UnsentMessage()
            assert await channel.stream_unary("/inference.GRPCInferenceService/ServerLive")(message) == b"\x08\x01"
            await message.end()


class UnsentMessage:
    """A message that does not come. `end` ends the client's task that waits for it."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._waiting: asyncio.Task[Any] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._waiting = asyncio.current_task()
        await self._over.wait()
        raise StopAsyncIteration

    async def end(self) -> None:
        self._over.set()
        if self._waiting:
            await asyncio.wait({self._waiting})


async def unread(address: str, method: str) -> Any:
    """The answer to a call whose message never comes."""
    async with grpcio.aio.insecure_channel(address) as channel:
        message = UnsentMessage()
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")(message)
        code = await call.code()
        await message.end()
        return code


async def test_a_key_has_the_limits_over_grpc_that_it_has_over_http(folder: Path) -> None:
    async with Live(**GRPC, api_keys=("sesame",), key_tokens_per_second=0.001) as live:
        live.http.headers["Authorization"] = "Bearer sesame"
        toy = Scripted()
        await live.serve(toy.generate, toy_card(folder, "org/toy"))
        assert live.server.grpc
        async with grpcclient.InferenceServerClient(live.server.grpc.address) as client:
            key = {"authorization": "Bearer sesame"}
            await client.infer("org/toy", text("hi"), headers=key)
            with pytest.raises(InferenceServerException, match="tokens per second") as raised:
                await client.infer("org/toy", text("hi"), headers=key)
            assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        async with live.http.post("/v1/completions", json={"model": "org/toy", "prompt": "hi"}) as answer:
            assert answer.status == 429
        assert len(toy.requests) == 1


async def test_errors_do_not_show_where_workers_are(grpc: Grpc) -> None:
    async def fail(request: Any, context: Context) -> AsyncIterator[Any]:
        raise ConnectionError("lost 10.1.2.3:4567")
        yield

    await grpc.live.serve(fail, toy_card(grpc.folder, "org/broken"))
    with pytest.raises(InferenceServerException, match="a worker") as raised:
        await grpc.client.infer("org/broken", text("hi"))
    assert "10.1.2.3" not in str(raised.value)
    (error,) = await grpc.stream({"model_name": "org/broken", "inputs": text("hi")})
    assert "10.1.2.3" not in str(error)


async def test_inferences_are_in_the_metrics(grpc: Grpc) -> None:
    await grpc.client.infer("org/toy", text("STOPS"))
    name = "dynamo_frontend_requests_total"
    counted = {sample: value for sample, value in (await grpc.live.metrics()).items() if sample.startswith(name)}
    assert [value for sample, value in counted.items() if 'status="success"' in sample] == [1.0]


async def test_connections_leave_files_for_everything_else(tmp_path: Path) -> None:
    """A connection beyond the share of gRPC is closed at once, and the other port answers on."""
    few = 'ulimit -n 128; exec "$0" -m dynamo.frontend --kserve-grpc-server --http-port 0 --grpc-metrics-port 0'
    async with Stack(tmp_path, {}) as stack, AsyncExitStack() as opened:
        process = await stack.python("-c", few, sys.executable, interpreter="bash")
        url = (await process.line("serving on ")).rpartition(" ")[2]
        address = (await process.line("gRPC on ")).rpartition(" ")[2]
        host, _, port = address.rpartition(":")
        accepted = 0
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            opened.callback(writer.close)
            # The settings of HTTP/2 come first.
            if not await reader.read(1):
                break
            accepted += 1
        assert accepted == 128 // 8
        async with aiohttp.ClientSession() as http, http.get(f"{url}/live") as answer:
            assert answer.status == 200


async def test_an_idle_connection_is_closed(folder: Path) -> None:
    async with Live(**GRPC, idle_timeout=0.1) as live:
        assert live.server.grpc
        host, _, port = live.server.grpc.address.rpartition(":")
        channel = grpcclient.InferenceServerClient(live.server.grpc.address)
        assert await channel.is_server_live()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04" + bytes(5))
        await reader.read()
        writer.close()
        # Its own one was closed meanwhile, which a client does not notice.
        assert await channel.is_server_live()
        await channel.close()
