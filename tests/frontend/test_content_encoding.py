from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend import bodies
from dynamo.frontend.bodies import TooLong, unpack
from dynamo.protocols.errors import HttpError
from support.serving import CHAT, serving

MB = 1 << 20
LIMIT = 4096


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
}


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", "deflate", "identity"])
async def test_a_compressed_request_is_answered(tmp_path: Path, encoding: str) -> None:
    pack = PACKERS.get(encoding.lower(), bytes)
    async with serving(tmp_path) as stack:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        body = pack(json.dumps(CHAT).encode())
        answer = await stack.http.post(f"{stack.url}/v1/chat/completions", data=body, headers=headers)
        assert answer.status == 200


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 401), ("/live", 405), ("/health/x", 401)])
async def test_a_body_that_is_not_admitted_is_never_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    unpacked = []
    real = zlib.decompressobj

    def watched(*arguments: Any, **named: Any) -> object:
        unpacked.append(path)
        return real(*arguments, **named)

    async with serving(tmp_path, api_keys=("k",)) as stack:
        monkeypatch.setattr(zlib, "decompressobj", watched)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = await stack.http.post(stack.url + path, data=gzip.compress(bytes(8 * MB)), headers=headers)
        assert (answer.status, unpacked) == (status, [])


async def test_malformed_gzip_is_refused_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole = gzip.compress(json.dumps(CHAT).encode())
    async with serving(tmp_path) as stack:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        for body in (b"no gzip", whole[:-1], whole + whole):
            caplog.clear()
            answer = await stack.http.post(f"{stack.url}/v1/chat/completions", data=body, headers=headers)
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
            assert len(caplog.records) == 1
            assert caplog.records[0].exc_info is None


async def test_an_encoding_that_is_not_spoken_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        answer = await stack.chat(headers={"Content-Encoding": "br"})
        assert answer.status == 415
        assert "gzip or deflate, not br" in (await answer.json())["error"]["message"]


@given(st.binary(max_size=2 * LIMIT), st.sampled_from((gzip.compress, zlib.compress, raw_deflate)))
async def test_what_was_packed_comes_back_up_to_the_limit(body: bytes, pack: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if pack is gzip.compress else "deflate"
    packed = pack(body)
    if len(body) > LIMIT:
        with pytest.raises(TooLong):
            await unpack(packed, encoding, LIMIT)
    else:
        assert await unpack(packed, encoding, LIMIT) == body


@given(st.binary(max_size=200), st.sampled_from(("gzip", "deflate")))
async def test_any_bytes_are_unpacked_or_refused(body: bytes, encoding: str) -> None:
    try:
        assert len(await unpack(body, encoding, LIMIT)) <= LIMIT
    except (HttpError, TooLong):
        pass


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw_deflate])
@pytest.mark.parametrize("body", [bytes(range(256)) * 8, bytes(2048), b"ab" * 700])
async def test_a_body_of_many_steps_is_unpacked_whole(
    monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes], body: bytes
) -> None:
    monkeypatch.setattr(bodies, "STEP", 7)
    assert await unpack(pack(body), "gzip" if pack is gzip.compress else "deflate", LIMIT) == body
