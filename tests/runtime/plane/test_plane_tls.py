"""TLS on the request plane: who gets in, who does not, and what a stranger learns and costs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.protocols.errors import CannotConnect
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context
from dynamo.runtime.client import Inbox
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.base import PlaneError, route_path
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.tcp import TcpConfig, TcpPlane
from dynamo.runtime.plane.tls import PlaneTls
from support.certificates import authority, renewed, shown_in, signed
from support.waiting import PATIENCE


class Pki:
    """One authority with a worker's and a client's certificate, and another authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.other = authority(folder), authority(folder, "other")
        self.worker, self.client = (signed(folder, name, self.ca) for name in ("worker", "client"))

    def tls(self, files: tuple[Path, Path] | None, ca: Path | None = None, **more: Any) -> PlaneTls:
        cert, key = files or (None, None)
        return PlaneTls(cert=cert, key=key, ca=ca or self.ca[0], **more)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


async def echo(request: Any) -> AsyncIterator[Any]:
    yield request


class Party:
    """A worker with these TLS settings; `ask` connects with others."""

    def __init__(self, tls: PlaneTls, **more: Any) -> None:
        self._plane = TcpPlane(TcpConfig(tls=tls, **more))
        self._clients: list[TcpPlane] = []

    async def __aenter__(self) -> Party:
        route = Route(route_path(EndpointId("a", "b", "c"), 1), GeneratorHandler(echo))
        address = await self._plane.serve(route)
        self.instance = Instance(
            instance_id=1, namespace="a", component="b", endpoint="c", transport="tcp", address=address
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for plane in (*self._clients, self._plane):
            await plane.close()

    @property
    def port(self) -> int:
        return int(self.instance.address.rpartition(":")[2])

    async def ask(self, tls: PlaneTls, **more: Any) -> Any:
        client = TcpPlane(TcpConfig(tls=tls, **more))
        self._clients.append(client)
        channel = client.channel(self.instance)
        async with asyncio.timeout(PATIENCE):
            await channel.open()
            inbox = Inbox(None)
            channel.send("served", Context(), inbox)
            return (await inbox.next()).data()


async def test_both_sides_with_a_certificate_of_the_authority_talk(pki: Pki) -> None:
    async with Party(pki.tls(pki.worker)) as party:
        assert await party.ask(pki.tls(pki.client)) == "served"


async def test_a_token_inside_tls_is_checked_too(pki: Pki) -> None:
    async with Party(pki.tls(pki.worker), token="right") as party:
        assert await party.ask(pki.tls(pki.client), token="right") == "served"
        with pytest.raises(CannotConnect, match="token"):
            await party.ask(pki.tls(pki.client), token="wrong")


async def test_a_client_without_a_certificate_gets_nothing(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    async with Party(pki.tls(pki.worker)) as party:
        with pytest.raises(CannotConnect):
            await party.ask(pki.tls(None))
        assert caplog.text.count("TLS failed: peer did not return a certificate") == 1


async def test_a_certificate_of_another_authority_gets_nothing(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    foreign = signed(pki.folder, "foreign", pki.other)
    async with Party(pki.tls(pki.worker)) as party:
        with pytest.raises(CannotConnect):
            await party.ask(pki.tls(foreign))
        assert "TLS failed" in caplog.text
        assert await party.ask(pki.tls(pki.client)) == "served"


async def test_an_expired_certificate_gets_nothing(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    expired = signed(pki.folder, "expired", pki.ca, expired=True)
    async with Party(pki.tls(pki.worker)) as party:
        with pytest.raises(CannotConnect):
            await party.ask(pki.tls(expired))
        assert "certificate has expired" in caplog.text
    async with Party(pki.tls(expired)) as party:
        with pytest.raises(CannotConnect, match="TLS failed: certificate has expired"):
            await party.ask(pki.tls(pki.client))


async def test_a_worker_of_another_authority_is_not_talked_to(pki: Pki) -> None:
    foreign = signed(pki.folder, "foreign-worker", pki.other)
    async with Party(pki.tls(foreign)) as party:
        with pytest.raises(CannotConnect, match="TLS failed"):
            await party.ask(pki.tls(pki.client))
        insecure = pki.tls(signed(pki.folder, "other-client", pki.ca), insecure=True)
        assert await party.ask(insecure) == "served"


async def test_a_workers_certificate_must_carry_its_address_or_the_name_expected(pki: Pki) -> None:
    named = signed(pki.folder, "named", pki.ca, "DNS:worker.example")
    async with Party(pki.tls(named)) as party:
        with pytest.raises(CannotConnect, match="TLS failed: IP address mismatch"):
            await party.ask(pki.tls(pki.client))
        assert await party.ask(pki.tls(pki.client, server_name="worker.example")) == "served"


async def test_a_client_without_tls_gets_nothing(pki: Pki) -> None:
    async with Party(pki.tls(pki.worker)) as party:
        with pytest.raises(CannotConnect):
            await party.ask(PlaneTls())


async def test_port_scanners_cost_one_line_in_the_log(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    async with Party(pki.tls(pki.worker)) as party:
        for probe in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"SSH-2.0-scan\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", party.port)
            writer.write(probe)
            async with asyncio.timeout(PATIENCE):
                assert len(await reader.read()) < 16  # at most a TLS alert
            writer.close()
        assert len([one for one in caplog.records if "closing the connection" in one.message]) == 1
        assert await party.ask(pki.tls(pki.client)) == "served"


async def test_renewed_files_are_used_for_new_connections(pki: Pki, tmp_path: Path) -> None:
    cert, key = signed(tmp_path, "short", pki.ca)
    async with Party(pki.tls((cert, key))) as party:
        assert await party.ask(pki.tls(pki.client)) == "served"
        renewed(cert, key)
        context = pki.tls(pki.client, insecure=True).client_context()
        _, writer = await asyncio.open_connection("127.0.0.1", party.port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        assert shown == shown_in(cert)


async def test_unusable_files_are_named_with_their_variables(pki: Pki, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(PlaneError, match=r"missing\.pem.*No such file.*DYN_TCP_TLS_CERT_PATH"):
        async with Party(pki.tls((missing, missing))):
            pass
    with pytest.raises(ValueError, match="DYN_TCP_TLS_CERT_PATH and DYN_TCP_TLS_KEY_PATH go together"):
        PlaneTls(cert=missing)


def test_older_versions_of_tls_are_not_spoken(pki: Pki) -> None:
    context = pki.tls(pki.worker).server_context()
    assert context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
