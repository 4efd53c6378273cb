"""Forms that are odd, endless or mostly frame."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from dynamo.api.openai.files import FormStream
from support.serving import Served, serving

START = b"--b\r\n"
PURPOSE = START + b'Content-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
FILE = START + b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n'
END = b"--b--\r\n"


async def upload(stack: Served, body: bytes, kind: str = "multipart/form-data; boundary=b") -> tuple[int, str]:
    async with stack.http.post(f"{stack.url}/v1/files", data=body, headers={"Content-Type": kind}) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(START + b"\r\n\r\n" + (START + b"\r\n\r\n") * 100 + PURPOSE + FILE + END, id="empty parts"),
        pytest.param(b"\r\n" * 1000 + PURPOSE + FILE + END, id="empty lines before"),
        pytest.param(b"x" * 8000 + b"\r\n" + b"x" * 30_000 + b"\r\n" + PURPOSE + FILE + END, id="long lines before"),
        pytest.param((START + b"x: " + b"y" * 8000 + b"\r\n\r\n\r\n") * 5 + PURPOSE + FILE + END, id="long headers"),
    ],
)
async def test_a_form_of_mostly_frame_is_refused(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path) as stack:
        status, text = await upload(stack, body)
        assert (status, "invalid_multipart" in text) == (400, True), text
        assert (await upload(stack, PURPOSE + FILE + END))[0] == 200


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(START + b"no colon\r\n\r\nabc\r\n", id="a header without a colon"),
        pytest.param(START + b"x: " + b"y" * 9000 + b"\r\n\r\nabc\r\n", id="a long line"),
        pytest.param(START + b"Content-Type: multipart/mixed\r\n\r\nabc\r\n", id="a nested form without a boundary"),
        pytest.param(
            START + b'Content-Disposition: form-data; name="file"\r\nContent-Transfer-Encoding: magic\r\n\r\nabc\r\n',
            id="an unknown encoding",
        ),
        pytest.param(START + b"x: \xff\x00\r\n\r\nabc\r\n", id="no text"),
        pytest.param(b"", id="nothing"),
        pytest.param(START, id="no end"),
    ],
)
async def test_an_odd_form_is_answered_and_no_failure_of_the_server(
    tmp_path: Path, part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as stack:
        status, _ = await upload(stack, part + FILE)
        assert status == 400
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_part_that_nobody_reads_is_no_way_around_the_limit_of_files(tmp_path: Path) -> None:
    part = START + b'Content-Disposition: form-data; name="other"\r\n\r\n' + bytes(1 << 16)

    async def endless() -> AsyncGenerator[bytes, None]:
        yield part
        while True:
            yield bytes(1 << 16)

    async with serving(tmp_path, stored_files_mb=1) as stack, aclosing(endless()) as body:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        # The client reads the answer, or finds the connection closed while it still sends.
        with contextlib.suppress(aiohttp.ClientError):
            async with stack.http.post(f"{stack.url}/v1/files", data=body, headers=headers) as answer:
                assert answer.status == 413


async def test_a_file_larger_than_the_limit_is_refused_by_its_length(tmp_path: Path) -> None:
    async with serving(tmp_path, stored_files_mb=1) as stack, stack.raw() as (reader, writer):
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 9000000\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")


async def test_others_have_their_turn_while_a_form_that_has_arrived_is_read() -> None:
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(BaseProtocol(loop), 1 << 30, loop=loop)
    content.feed_data(bytes(1 << 20))
    content.feed_eof()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    form = FormStream(content, 1 << 21)
    while await form.read(1 << 16):
        pass
    task.cancel()
    assert turns >= 16


async def test_nothing_is_remembered_or_printed_of_headers_that_cannot_be_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        with warnings.catch_warnings(record=True) as shown:
            before = len(getattr(aiohttp.multipart, "__warningregistry__", ()))
            for number in range(20):
                part = START + b"Content-Disposition: form-data; %d; %d\r\n\r\nabc\r\n" % (number, number)
                await upload(stack, part + PURPOSE + FILE + END)
        assert shown == []
        assert len(getattr(aiohttp.multipart, "__warningregistry__", ())) - before <= 1
