"""The picker's side of Envoy's external processing, asked over real gRPC as Envoy asks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dynamo.api.epp import messages
from dynamo.api.epp.exchange import DESTINATION, REMOVED, SUBSET, GatewayRequest
from dynamo.api.epp.server import PickerServer
from dynamo.protocols.errors import ResourceExhausted, StartError, Unavailable
from support.certificates import certificate
from support.waiting import until

ENDPOINT = "10.0.0.1:8000"
BODY = json.dumps({"model": "m", "prompt": "hello"}).encode()
FULL = {"request_body_mode": messages.FULL_DUPLEX_STREAMED, "response_body_mode": messages.FULL_DUPLEX_STREAMED}


class Chosen:
    """Notes how a request fares."""

    endpoint = ENDPOINT

    def __init__(self) -> None:
        self.headers = {"x-dynamo-worker-instance-id": "7"}
        self.told: list[str] = []

    def first_output(self) -> None:
        self.told.append("output")

    def answered(self, failed: bool) -> None:
        self.told.append("failed" if failed else "answered")

    def release(self) -> None:
        if "released" not in self.told:
            self.told.append("released")


class OneServer:
    def __init__(self) -> None:
        self.asked: list[GatewayRequest] = []
        self.chosen: list[Chosen] = []
        self.error: Exception | None = None

    async def pick(self, request: GatewayRequest) -> Chosen:
        self.asked.append(request)
        if self.error:
            raise self.error
        self.chosen.append(Chosen())
        return self.chosen[-1]


@pytest.fixture
def server_of() -> OneServer:
    return OneServer()


@asynccontextmanager
async def serving(picks: OneServer, **options: Any) -> AsyncIterator[PickerServer]:
    server = PickerServer(picks, "127.0.0.1", 0, 0, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def exchange(picks: OneServer, **options: Any) -> AsyncIterator[Any]:
    """A call of the gateway."""
    async with serving(picks, **options) as server, grpc.aio.insecure_channel(server.address) as channel:
        method = channel.stream_stream(
            messages.PROCESS,
            request_serializer=messages.ProcessingRequest.SerializeToString,
            response_deserializer=messages.ProcessingResponse.FromString,
        )
        call = method()
        yield call
        call.cancel()
        await until(lambda: all("released" in each.told for each in picks.chosen))


def headers(
    end: bool = False, mode: dict[str, int] | None = FULL, subset: Any = None, more: Mapping[str, str] = {}
) -> Any:
    request = messages.ProcessingRequest()
    given = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r1", **more}
    for key, text in given.items():
        request.request_headers.headers.headers.add(key=key, raw_value=text.encode())
    request.request_headers.end_of_stream = end
    if mode:
        for name, value in mode.items():
            setattr(request.protocol_config, name, value)
    if subset is not None:
        request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({SUBSET: subset})
    return request


def body(kind: str, content: bytes, end: bool) -> Any:
    request = messages.ProcessingRequest()
    getattr(request, kind).body = content
    getattr(request, kind).end_of_stream = end
    return request


def response_headers(status: int = 200, end: bool = False) -> Any:
    request = messages.ProcessingRequest()
    request.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
    request.response_headers.end_of_stream = end
    return request


def set_headers(response: Any) -> dict[str, str]:
    common = response.request_headers.response or response.request_body.response
    return {each.header.key: each.header.raw_value.decode() for each in common.header_mutation.set_headers}


def part(response: Any, kind: str) -> tuple[bytes, bool]:
    streamed = getattr(response, kind).response.body_mutation.streamed_response
    return streamed.body, streamed.end_of_stream


async def test_a_request_is_held_until_it_is_whole_and_goes_on_unchanged(server_of: OneServer) -> None:
    async with exchange(server_of) as call:
        for message in (headers(), body("request_body", BODY[:9], False), body("request_body", BODY[9:], True)):
            await call.write(message)
        order = await call.read()
        assert set_headers(order) == {DESTINATION: ENDPOINT, "x-dynamo-worker-instance-id": "7"}
        removed = set(order.request_headers.response.header_mutation.remove_headers)
        assert removed == {*REMOVED, "x-dynamo-dp-rank", "x-dynamo-routing-mode"}
        assert order.request_headers.response.clear_route_cache
        assert order.dynamic_metadata["envoy.lb"][DESTINATION] == ENDPOINT
        assert part(await call.read(), "request_body") == (BODY, True)
    [asked] = server_of.asked
    assert (asked.id, asked.method, asked.path, bytes(asked.body or b"")) == ("r1", "POST", "/v1/completions", BODY)


async def test_an_answer_is_followed_to_its_end(server_of: OneServer) -> None:
    async with exchange(server_of) as call:
        await call.write(headers())
        await call.write(body("request_body", BODY, True))
        await call.read(), await call.read()
        [chosen] = server_of.chosen
        await call.write(response_headers())
        assert (await call.read()).HasField("response_headers")
        assert chosen.told == ["answered"]
        await call.write(body("response_body", b"data: 1", False))
        assert part(await call.read(), "response_body") == (b"data: 1", False)
        assert chosen.told == ["answered", "output"]
        await call.write(body("response_body", b"data: 2", True))
        assert part(await call.read(), "response_body") == (b"data: 2", True)
        assert chosen.told == ["answered", "output", "released"]


async def test_a_body_of_megabytes_goes_on_in_parts_that_envoy_takes(server_of: OneServer) -> None:
    sent = bytes(range(256)) * 2000
    async with exchange(server_of) as call:
        await call.write(headers())
        for start in range(0, len(sent), 100_000):
            await call.write(body("request_body", sent[start : start + 100_000], start + 100_000 >= len(sent)))
        await call.read()
        got, end = b"", False
        while not end:
            piece, end = part(await call.read(), "request_body")
            assert len(piece) <= 62_000
            got += piece
        assert got == sent


async def test_a_request_beyond_the_limit_goes_by_load_and_passes_through(server_of: OneServer) -> None:
    async with exchange(server_of, body_limit=10) as call:
        await call.write(headers())
        await call.write(body("request_body", b"x" * 11, False))
        assert set_headers(await call.read())[DESTINATION] == ENDPOINT
        assert part(await call.read(), "request_body") == (b"x" * 11, False)
        await call.write(body("request_body", b"y", True))
        assert part(await call.read(), "request_body") == (b"y", True)
    assert server_of.asked[0].body is None


async def test_a_request_without_a_body_is_answered_at_once(server_of: OneServer) -> None:
    async with exchange(server_of) as call:
        await call.write(headers(end=True))
        assert set_headers(await call.read())[DESTINATION] == ENDPOINT


async def test_a_body_that_trailers_end_is_whole(server_of: OneServer) -> None:
    async with exchange(server_of) as call:
        await call.write(headers())
        await call.write(body("request_body", BODY, False))
        trailers = messages.ProcessingRequest()
        trailers.request_trailers.SetInParent()
        await call.write(trailers)
        assert set_headers(await call.read())[DESTINATION] == ENDPOINT
        assert part(await call.read(), "request_body") == (BODY, False)
        assert (await call.read()).HasField("request_trailers")


async def test_a_gateway_that_keeps_the_body_gets_the_order_with_it(server_of: OneServer) -> None:
    mode = {"request_body_mode": messages.BUFFERED, "response_body_mode": messages.NONE}
    async with exchange(server_of) as call:
        await call.write(headers(mode=mode))
        assert (await call.read()).HasField("request_headers")
        await call.write(body("request_body", BODY, True))
        order = await call.read()
        options = order.request_body.response.header_mutation.set_headers
        assert {each.header.key for each in options} == {DESTINATION, "x-dynamo-worker-instance-id"}
        [chosen] = server_of.chosen
        await call.write(response_headers(503))
        await call.read()
        assert chosen.told == ["failed", "output"]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert chosen.told == ["failed", "output", "released"]


async def test_a_gateway_that_cuts_bodies_is_refused_with_the_remedy(server_of: OneServer) -> None:
    async with exchange(server_of) as call:
        await call.write(headers(mode={"request_body_mode": messages.STREAMED}))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "FULL_DUPLEX_STREAMED" in (refused.value.details() or "")


@pytest.mark.parametrize("hint", ["10.0.0.1:8000, 10.0.0.2:8000", ["10.0.0.1:8000", "10.0.0.2:8000"]])
async def test_only_the_gateway_says_which_servers_count(server_of: OneServer, hint: Any) -> None:
    async with exchange(server_of) as call:
        await call.write(headers(end=True, subset=hint, more={SUBSET: "6.6.6.6:1"}))
        await call.read()
    assert server_of.asked[0].subset == frozenset({"10.0.0.1:8000", "10.0.0.2:8000"})


@pytest.mark.parametrize(("error", "status"), [(Unavailable("none"), 503), (ResourceExhausted("all busy"), 503)])
async def test_a_request_without_a_server_is_answered_in_its_place(
    server_of: OneServer, error: Exception, status: int
) -> None:
    server_of.error = error
    async with exchange(server_of) as call:
        await call.write(headers())
        await call.write(body("request_body", BODY, True))
        said = (await call.read()).immediate_response
        assert (said.status.code, json.loads(said.body)["error"]["message"]) == (status, str(error))
        assert {each.header.key for each in said.headers.set_headers} == {"content-type", "retry-after"}


async def test_a_defect_ends_one_exchange_alone(server_of: OneServer) -> None:
    server_of.error = ZeroDivisionError()
    async with exchange(server_of) as call:
        await call.write(headers(end=True))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.INTERNAL


async def test_health_follows_readiness_on_both_ports(server_of: OneServer) -> None:
    ready = False
    async with serving(server_of, ready=lambda: ready) as server:
        for address in (server.address, server.health_address):
            async with grpc.aio.insecure_channel(address) as channel:
                for ready, expected in ((False, messages.NOT_SERVING), (True, messages.SERVING)):  # noqa: B007
                    assert (await check(channel, "inference-extension")).status == expected
                with pytest.raises(grpc.aio.AioRpcError) as unknown:
                    await check(channel, "another")
                assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def check(channel: Any, service: str) -> Any:
    method = channel.unary_unary(
        messages.HEALTH_CHECK,
        request_serializer=messages.HealthCheckRequest.SerializeToString,
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    return await method(messages.HealthCheckRequest(service=service))


async def test_a_new_certificate_is_shown_without_a_restart(server_of: OneServer, tmp_path: Path) -> None:
    made = [await asyncio.to_thread(certificate, tmp_path, name) for name in ("first", "second")]
    used = (tmp_path / "tls.crt", tmp_path / "tls.key")
    _place(made[0], used)
    async with serving(server_of, certificate=used) as server:
        for pair in made:
            _place(pair, used)
            credentials = grpc.ssl_channel_credentials(pair[0].read_bytes())
            async with grpc.aio.secure_channel(server.address, credentials) as channel:
                assert (await check(channel, "")).status == messages.SERVING
        used[0].write_text("no certificate")
        async with grpc.aio.secure_channel(server.address, credentials) as channel:
            assert (await check(channel, "")).status == messages.SERVING


def _place(pair: tuple[Path, Path], where: tuple[Path, Path]) -> None:
    for made, used in zip(pair, where, strict=True):
        used.write_bytes(made.read_bytes())


async def test_a_port_that_is_in_use_is_named(server_of: OneServer) -> None:
    async with serving(server_of) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: .*--epp-port"):
            await PickerServer(server_of, "127.0.0.1", port, -1).start()


def test_the_compiled_protocol_is_that_of_its_source(tmp_path: Path) -> None:
    source = Path(messages.__file__).parent
    compiled = tmp_path / "ext_proc.binpb"
    options = [f"-I{source}", f"--descriptor_set_out={compiled}", "--include_imports"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, "ext_proc.proto"], check=True)
    assert compiled.read_bytes() == (source / "ext_proc.binpb").read_bytes()
