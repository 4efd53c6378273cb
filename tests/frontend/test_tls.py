from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from dynamo.frontend.server import ServerError
from dynamo.frontend.tls import Certificate, TlsError, server_context
from support.certificates import certificate, renewed, shown_by, shown_in
from support.serving import CHAT, Holding, serving
from support.waiting import PATIENCE


async def test_https_is_served_streams_included(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    async with serving(tmp_path, tls_cert_path=cert, tls_key_path=key) as stack:
        assert stack.url.startswith("https://127.0.0.1:")
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cert))
        async with aiohttp.ClientSession(connector=trusting) as http:
            url = f"{stack.url}/v1/chat/completions"
            assert (await http.post(url, json=CHAT)).status == 200
            answer = await http.post(url, json={**CHAT, "stream": True})
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await stack.http.get(f"{stack.url}/live")
        async with stack.raw() as (reader, writer):
            writer.write(b"GET /live HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in await reader.read()


async def test_a_client_that_leaves_a_tls_stream_cancels_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    engine = Holding()
    async with serving(tmp_path, engine, tls_cert_path=cert, tls_key_path=key) as stack:
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cert))
        async with aiohttp.ClientSession(connector=trusting) as http:
            url = f"{stack.url}/v1/chat/completions"
            asking = asyncio.ensure_future(http.post(url, json={**CHAT, "stream": True}))
            held = await engine.requests.get()
            held.sink.tokens([100])
            (await asking).close()
            await held.cancelled.wait()


def test_wrong_files_are_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "other")
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-out", locked, "-aes128", "-passout", "pass:secret"],
        check=True,
        capture_output=True,
    )
    for wrong_cert, wrong_key, complaint in (
        (missing, key, "cannot read the TLS certificate .*missing.pem: No such file"),
        (cert, missing, "cannot read the TLS key .*missing.pem"),
        (tmp_path, key, "cannot read the TLS certificate .*directory"),
        (text, key, "cannot use .*text.pem"),
        (cert, other, "does not belong to the certificate"),
        (cert, locked, "is encrypted"),
    ):
        with pytest.raises(TlsError, match=complaint):
            server_context(wrong_cert, wrong_key)


async def test_a_server_without_its_certificate_does_not_start(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ServerError, match="cannot read the TLS certificate"):
        async with serving(tmp_path, tls_cert_path=missing, tls_key_path=missing):
            pass


@pytest.mark.parametrize("host", ["", "localhost"])
async def test_files_that_change_are_read_again(tmp_path: Path, host: str) -> None:
    cert, key = certificate(tmp_path, "server")
    shown = Certificate(cert, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=shown.context)
    async with server, asyncio.timeout(PATIENCE):
        port = server.sockets[0].getsockname()[1]
        shown.watch(every=0.01)
        assert await shown_by(port, host) == shown_in(cert)
        new = renewed(cert, key)
        while await shown_by(port, host) != new:
            pass
        shown.stop()


async def test_files_that_do_not_fit_leave_the_old_certificate_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path, "server")
    old = shown_in(cert)
    async with serving(tmp_path, tls_cert_path=cert, tls_key_path=key) as stack:
        certificate(tmp_path, "other")[0].replace(cert)
        stack.server.reload_certificate()
        assert "keeping the TLS certificate in use: the TLS key" in caplog.text
        assert await shown_by(stack.port) == old
        cert.unlink()
        stack.server.reload_certificate()
        assert await shown_by(stack.port) == old


async def test_a_renewal_ends_no_connection(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    engine = Holding()
    async with serving(tmp_path, engine, tls_cert_path=cert, tls_key_path=key) as stack:
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cert), limit=1)
        async with aiohttp.ClientSession(stack.url, connector=trusting) as http:
            asking = asyncio.create_task(http.post("/v1/chat/completions", json={**CHAT, "stream": True}))
            held = await engine.requests.get()
            held.sink.tokens([100])
            answer = await asking
            new = renewed(cert, key)
            stack.server.reload_certificate()
            assert await shown_by(stack.port) == new
            held.sink.tokens([101])
            held.sink.end()
            assert (await answer.text()).endswith("data: [DONE]\n\n")
            # The same connection, or the old certificate would not be trusted any more.
            assert (await http.get("/live")).status == 200
