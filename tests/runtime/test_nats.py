from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.nats.connection import NatsConnection, NatsError
from support.services import Nats, free_port
from support.waiting import PATIENCE


class GuardedNats(Nats):
    """A server with a token, which may be changed while it runs."""

    def guard(self, token: str) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / "nats.conf").write_text(f'authorization {{ token: "{token}" }}\n')
        if self.process:
            self.process.send_signal(signal.SIGHUP)

    def command(self) -> Sequence[str]:
        return [*super().command(), "--config", str(self.data / "nats.conf")]


class State:
    """What `on_state` told, as something to wait for."""

    def __init__(self, connection: NatsConnection) -> None:
        self.changes: asyncio.Queue[bool] = asyncio.Queue()
        self.remove = connection.on_state(self.changes.put_nowait)

    async def becomes(self, connected: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            assert await self.changes.get() is connected


Inbox = asyncio.Queue[tuple[str, bytes, str]]


def inbox(connection: NatsConnection, subject: str) -> Inbox:
    received: Inbox = asyncio.Queue()
    connection.subscribe(subject, lambda *message: received.put_nowait(message))
    return received


async def next_of(received: Inbox) -> tuple[str, bytes, str]:
    async with asyncio.timeout(PATIENCE):
        return await received.get()


@asynccontextmanager
async def connected(*servers: str, token: str | None = None) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(NatsConfig(servers=servers, token=token))
    await connection.start()
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_message_arrives_with_its_subject_and_reply(shared_nats: Nats) -> None:
    async with connected(shared_nats.url) as here, connected(shared_nats.url) as there:
        received = inbox(there, "arrives.*")
        await there.flush()
        here.publish("arrives.now", b"\x00\r\nPUB data", "answer.me")
        here.publish("arrives.too", b"")
        assert await next_of(received) == ("arrives.now", b"\x00\r\nPUB data", "answer.me")
        assert await next_of(received) == ("arrives.too", b"", "")


async def test_a_burst_keeps_its_order(shared_nats: Nats) -> None:
    async with connected(shared_nats.url) as connection:
        received = inbox(connection, "burst")
        for number in range(5000):
            connection.publish("burst", str(number).encode())
        assert [int((await next_of(received))[1]) for _ in range(5000)] == list(range(5000))


async def test_nobody_listening_is_answered_with_an_empty_message(shared_nats: Nats) -> None:
    async with connected(shared_nats.url) as connection:
        answers = inbox(connection, "answers.nobody")
        connection.publish("nobody.is.there", b"hello", "answers.nobody")
        assert await next_of(answers) == ("answers.nobody", b"", "")


async def test_after_unsubscribe_nothing_arrives(shared_nats: Nats) -> None:
    async with connected(shared_nats.url) as connection:
        gone: list[bytes] = []
        kept = inbox(connection, "unsubscribe")
        subscription = connection.subscribe("unsubscribe", lambda subject, data, reply: gone.append(data))
        connection.publish("unsubscribe", b"1")
        await next_of(kept)
        subscription.unsubscribe()
        subscription.unsubscribe()
        connection.publish("unsubscribe", b"2")
        assert (await next_of(kept))[1] == b"2"
        await connection.flush()
        assert gone == [b"1"]


async def test_a_failing_subscriber_harms_no_other(shared_nats: Nats, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(shared_nats.url) as connection:
        connection.subscribe("failing", lambda subject, data, reply: [][0])
        received = inbox(connection, "failing")
        connection.publish("failing", b"1")
        connection.publish("failing", b"2")
        assert [(await next_of(received))[1], (await next_of(received))[1]] == [b"1", b"2"]
    assert "the subscriber to failing failed" in caplog.text


async def test_a_subscription_survives_a_restart_and_publishing_in_between_raises(
    nats: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with connected(nats.url) as connection:
        state = State(connection)
        received = inbox(connection, "survives")
        cancelled = connection.subscribe("survives", lambda *_: pytest.fail("unsubscribed during the outage"))
        nats.stop()
        await state.becomes(False)
        assert not connection.connected
        with pytest.raises(NatsError, match="not connected to NATS at nats://127"):
            connection.publish("survives", b"lost")
        with pytest.raises(NatsError, match="not connected"):
            await connection.flush()
        late = inbox(connection, "survives")
        cancelled.unsubscribe()
        nats.start()
        await state.becomes(True)
        assert connection.connected
        connection.publish("survives", b"1")
        assert (await next_of(received))[1] == b"1"
        assert (await next_of(late))[1] == b"1"

        nats.stop()
        await state.becomes(False)
        nats.start()
        await state.becomes(True)
        connection.publish("survives", b"2")
        assert (await next_of(received))[1] == b"2"
    told = [(record.levelname, record.name) for record in caplog.records]
    assert told == [("WARNING", "dynamo.runtime.nats.connection"), ("INFO", "dynamo.runtime.nats.connection")] * 2


async def test_messages_published_as_the_server_dies_raise_nothing_but_nats_errors(
    nats: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(nats.url) as connection:
        state = State(connection)
        nats.stop()
        refused = False
        async with asyncio.timeout(PATIENCE):
            while not refused:
                try:
                    connection.publish("dying", b"x" * 100_000)
                except NatsError:
                    refused = True
                await asyncio.sleep(0)
        await state.becomes(False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_access_that_is_revoked_and_given_back_only_interrupts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = GuardedNats(tmp_path / "nats", free_port())
    server.guard("first")
    server.start()
    try:
        async with connected(server.url, token="first") as connection:
            state = State(connection)
            received = inbox(connection, "revoked")
            server.guard("second")
            await state.becomes(False)
            late = inbox(connection, "revoked")
            server.guard("first")
            await state.becomes(True)
            connection.publish("revoked", b"1")
            assert (await next_of(received))[1] == b"1"
            assert (await next_of(late))[1] == b"1"
    finally:
        server.stop()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_wrong_token_fails_the_start_with_the_servers_reason(tmp_path: Path) -> None:
    server = GuardedNats(tmp_path / "nats", free_port())
    server.guard("right")
    server.start()
    try:
        with pytest.raises(NatsError, match=r"cannot reach NATS at .*Authorization Violation"):
            await NatsConnection(NatsConfig(servers=(server.url,), token="wrong")).start()
    finally:
        server.stop()


async def test_no_server_fails_the_start_and_names_the_fix() -> None:
    before = asyncio.all_tasks()
    url = f"nats://me:secret@127.0.0.1:{free_port()}"
    connection = NatsConnection(NatsConfig(servers=(url,)))
    with pytest.raises(NatsError) as failure:
        await connection.start()
    assert str(failure.value).startswith("cannot reach NATS at nats://127.0.0.1:")
    assert str(failure.value).endswith("; start it (nats-server), or use --request-plane tcp")
    with pytest.raises(NatsError, match="not connected"):
        connection.publish("a", b"")
    with pytest.raises(NatsError, match="not started"):
        connection.subscribe("a", lambda *_: None)
    await connection.close()
    assert asyncio.all_tasks() == before


async def test_a_server_that_is_not_nats_fails_the_start() -> None:
    async def say_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(say_http, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NatsError, match="cannot reach NATS at"):
            await NatsConnection(NatsConfig(servers=(f"127.0.0.1:{port}",))).start()


async def test_any_server_of_the_list_will_do(shared_nats: Nats) -> None:
    async with connected(f"nats://127.0.0.1:{free_port()}", shared_nats.url) as connection:
        received = inbox(connection, "list")
        connection.publish("list", b"1")
        assert (await next_of(received))[1] == b"1"


async def test_close_leaves_no_task_and_sends_what_was_published(shared_nats: Nats) -> None:
    async with connected(shared_nats.url) as there:
        received = inbox(there, "last.words")
        await there.flush()
        before = asyncio.all_tasks()
        here = NatsConnection(NatsConfig(servers=(shared_nats.url,)))
        await here.start()
        here.subscribe("last.>", lambda *_: None)
        here.publish("last.words", b"bye")
        await here.close()
        await here.close()
        assert asyncio.all_tasks() == before
        assert (await next_of(received))[1] == b"bye"
        with pytest.raises(NatsError, match="not connected"):
            here.publish("last.words", b"again")
        with pytest.raises(NatsError, match="closed"):
            here.subscribe("last.words", lambda *_: None)


async def test_close_during_an_outage_leaves_no_task(nats: Nats) -> None:
    before = asyncio.all_tasks()
    connection = NatsConnection(NatsConfig(servers=(nats.url,)))
    await connection.start()
    state = State(connection)
    nats.stop()
    await state.becomes(False)
    await connection.close()
    assert asyncio.all_tasks() == before


async def test_bad_messages_are_refused(shared_nats: Nats) -> None:
    async with connected(shared_nats.url) as connection:
        assert connection.max_payload == 1 << 20
        with pytest.raises(NatsError, match=r"1048577 bytes is over the 1048576"):
            connection.publish("large", bytes(connection.max_payload + 1))
        for subject in ("", "two words", "a\r\nPUB b 0"):
            with pytest.raises(NatsError, match="cannot publish on"):
                connection.publish(subject, b"")
            with pytest.raises(NatsError, match="cannot subscribe to"):
                connection.subscribe(subject, lambda *_: None)
        await connection.flush()
        assert connection.connected


async def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "nkeys", None)
        with pytest.raises(NatsError, match="pip install nkeys"):
            await NatsConnection(NatsConfig(nkey_seed="SUxxxx")).start()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "nats.aio.client", None)
        with pytest.raises(NatsError, match=r"need nats-py: pip install 'dynamo-serving\[nats\]'"):
            await NatsConnection(NatsConfig()).start()


async def test_a_missing_authority_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(NatsError, match=f"NATS_TLS_CA_CERT_PATH {missing}"):
        await NatsConnection(NatsConfig(tls_ca_file=missing)).start()


def test_the_environment_names_servers_and_credentials() -> None:
    assert NatsConfig.from_env({}) == NatsConfig()
    assert NatsConfig.from_env({"NATS_SERVER": "", "NATS_AUTH_TOKEN": ""}) == NatsConfig()
    environ = {
        "NATS_SERVER": "nats://a:1, b:2,",
        "NATS_AUTH_USERNAME": "me",
        "NATS_AUTH_PASSWORD": "secret",
        "NATS_AUTH_TOKEN": "t",
        "NATS_AUTH_NKEY": "seed",
        "NATS_AUTH_CREDENTIALS_FILE": "/c",
        "NATS_TLS_CA_CERT_PATH": "/ca",
    }
    assert NatsConfig.from_env(environ) == NatsConfig(
        servers=("nats://a:1", "b:2"),
        username="me",
        password="secret",
        token="t",
        nkey_seed="seed",
        credentials_file="/c",
        tls_ca_file="/ca",
    )


@pytest.mark.parametrize("server", ["http://a:4222", "nats://", "nats://a:port", "nats://a:99999", ",", "nats://u:p@"])
def test_an_address_that_is_none_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="NATS_SERVER") as refusal:
        NatsConfig.from_env({"NATS_SERVER": server})
    assert "u:p" not in str(refusal.value)


def test_a_user_without_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD"):
        NatsConfig.from_env({"NATS_AUTH_USERNAME": "me"})
