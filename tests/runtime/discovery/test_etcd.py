from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.runtime.discovery import Delete, DiscoveryError, EtcdConfig, EtcdDiscovery, Put, Synced
from dynamo.runtime.discovery.etcd import gateway, registration
from dynamo.runtime.discovery.etcd.gateway import Gateway, Lines, Outage
from dynamo.runtime.discovery.etcd.messages import range_end
from dynamo.runtime.discovery.etcd.watch import EtcdWatch
from support.following import QuickEtcd, changes_until, holder, snapshot
from support.services import Etcd, free_port
from support.waiting import PATIENCE, until

TLS = Path(__file__).with_name("tls")  # an authority of the tests' own, and a certificate of localhost
LOGGER = "dynamo.runtime.discovery.etcd"


async def api(server: Etcd, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What an operator does with etcdctl."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, data=msgspec.json.encode(body)) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def keys(server: Etcd) -> dict[bytes, bytes]:
    class KV(msgspec.Struct):
        key: bytes
        value: bytes = b""

    answer = await api(server, "/v3/kv/range", {"key": b"\0", "range_end": b"\0"})
    found = msgspec.convert(answer.get("kvs", []), list[KV])
    return {kv.key: kv.value for kv in found}


@asynccontextmanager
async def joined(*endpoints: str, ttl: int = 10, **options: Any) -> AsyncIterator[EtcdDiscovery]:
    """A participant. A busy machine may lose a short lease, so only tests that wait for its end have one."""
    discovery = EtcdDiscovery(EtcdConfig(endpoints=endpoints, lease_ttl=ttl, **options))
    await discovery.start()
    try:
        yield discovery
    finally:
        await discovery.close()


async def heard(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until the log says so."""
    said = asyncio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                said.set()

    ear = Ear()
    logging.getLogger(LOGGER).addHandler(ear)
    try:
        if text not in caplog.text:
            async with asyncio.timeout(PATIENCE):
                await said.wait()
    finally:
        logging.getLogger(LOGGER).removeHandler(ear)


async def test_a_killed_process_disappears(shared_etcd: Etcd) -> None:
    async with (
        joined(shared_etcd.url) as frontend,
        holder("etcd", shared_etcd.url, "killed/worker") as worker,
        aclosing(frontend.watch("killed/")) as changes,
    ):
        assert await snapshot(changes) == [Put("killed/worker", b"held")]
        worker.send_signal(signal.SIGKILL)
        assert await changes_until(changes, Delete("killed/worker")) == [Delete("killed/worker")]


async def test_a_store_that_comes_back_empty_is_filled_again_and_only_the_dead_are_told(etcd: Etcd) -> None:
    async with joined(etcd.url, ttl=2, return_grace=5.0) as frontend, joined(etcd.url) as worker:
        leaver = EtcdDiscovery(EtcdConfig(endpoints=(etcd.url,), lease_ttl=2))
        await leaver.start()
        await worker.put("v1/worker", b"1")
        await worker.put("v1/second", b"2")
        await leaver.put("v1/leaver", b"3")
        async with aclosing(frontend.watch("v1/")) as changes:
            assert len(await snapshot(changes)) == 3
            await worker.put("v1/worker", b"1+")
            await changes_until(changes, Put("v1/worker", b"1+"))
            following = asyncio.create_task(changes_until(changes, Delete("v1/leaver")))
            etcd.stop()
            etcd.wipe()
            await leaver.close()
            etcd.start()
            assert await following == [Delete("v1/leaver")]
            assert await keys(etcd) == {b"dynamo/v1/worker": b"1+", b"dynamo/v1/second": b"2"}
            await worker.put("v1/worker", b"changed")
            assert await changes_until(changes, Put("v1/worker", b"changed")) == [Put("v1/worker", b"changed")]


async def test_a_store_emptied_between_reading_and_watching_is_noticed(etcd: Etcd) -> None:
    async with joined(etcd.url, ttl=2) as frontend, joined(etcd.url) as worker:
        await worker.put("v1/a", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            await snapshot(changes)
            etcd.stop()
            etcd.wipe()
            etcd.start()
            await worker.put("v1/b", b"1")
            assert await changes_until(changes, Put("v1/b", b"1")) == [Put("v1/b", b"1")]


async def test_changes_during_an_outage_are_told_once_it_ends(etcd: Etcd) -> None:
    async with joined(etcd.url, ttl=2, return_grace=0.0) as frontend, joined(etcd.url) as worker:
        await worker.put("v1/kept", b"1")
        await worker.put("v1/dropped", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            await snapshot(changes)
            etcd.stop()
            async with asyncio.timeout(PATIENCE):
                await worker.put("v1/new", b"1")
                await worker.put("v1/new", b"2")
                await worker.delete("v1/dropped")
            with pytest.raises(DiscoveryError, match=f"cannot reach etcd at {etcd.url}"):
                await frontend.get_prefix("v1/")
            etcd.start()
            assert {await anext(changes), await anext(changes)} == {Put("v1/new", b"2"), Delete("v1/dropped")}
        assert await frontend.get_prefix("v1/") == {"v1/kept": b"1", "v1/new": b"2"}


async def test_an_etcd_that_stood_still_beyond_the_leases_costs_the_living_nothing(etcd: Etcd) -> None:
    assert etcd.process
    async with (
        joined(etcd.url, ttl=2, return_grace=5.0) as frontend,
        joined(etcd.url, ttl=2) as worker,
        joined(etcd.url, ttl=2) as leaver,
    ):
        await worker.put("v1/worker", b"1")
        await leaver.put("v1/leaver", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            await snapshot(changes)
            following = asyncio.create_task(changes_until(changes, Delete("v1/leaver")))
            etcd.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(3)  # the leases end, nobody is told
            await leaver.close()
            etcd.process.send_signal(signal.SIGCONT)
            assert await following == [Delete("v1/leaver")]

            async def is_back() -> bool:
                return await frontend.get_prefix("v1/") == {"v1/worker": b"1"}

            await until(is_back)
            await worker.put("v1/worker", b"2")
            assert await changes_until(changes, Put("v1/worker", b"2")) == [Put("v1/worker", b"2")]


async def test_a_watch_begun_during_an_outage_waits_for_its_end(etcd: Etcd) -> None:
    async with joined(etcd.url) as worker:
        await worker.put("v1/a", b"1")
        etcd.stop()
        async with aclosing(worker.watch("v1/")) as changes:
            first = asyncio.create_task(anext(changes))
            await worker.put("v1/a", b"2")
            etcd.start()
            async with asyncio.timeout(PATIENCE):
                assert (await first) in (Put("v1/a", b"1"), Put("v1/a", b"2"))


async def test_an_outage_is_logged_once_when_it_starts_and_once_when_it_ends(
    etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with joined(etcd.url) as worker:
        await worker.put("v1/a", b"1")
        async with aclosing(worker.watch("v1/")) as changes:
            await snapshot(changes)
            etcd.stop()
            await heard(caplog, "does not answer")
            for number in range(5):
                await worker.put("v1/a", b"%d" % number)
            etcd.start()
            await heard(caplog, "answers again")
            await changes_until(changes, Put("v1/a", b"4"))
    levels = [record.levelno for record in caplog.records if record.name == LOGGER]
    assert levels == [logging.WARNING, logging.INFO]


async def test_closing_during_an_outage_is_quiet_and_does_not_hang(etcd: Etcd) -> None:
    async with asyncio.timeout(PATIENCE):
        async with joined(etcd.url) as worker:
            await worker.put("v1/a", b"1")
            etcd.stop()


async def test_a_lost_lease_is_replaced_with_everything_on_it(shared_etcd: Etcd) -> None:
    async with (
        joined(shared_etcd.url, ttl=3, prefix="lost/") as worker,
        joined(shared_etcd.url, prefix="lost/") as frontend,
    ):
        await worker.put("v1/a", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            await snapshot(changes)
            lease = (await api(shared_etcd, "/v3/kv/range", {"key": b"lost/v1/a"}))["kvs"][0]["lease"]
            await api(shared_etcd, "/v3/lease/revoke", {"ID": lease})
            assert await changes_until(changes, Put("v1/a", b"1")) == [Delete("v1/a"), Put("v1/a", b"1")]
            lease = (await api(shared_etcd, "/v3/kv/range", {"key": b"lost/v1/a"}))["kvs"][0]["lease"]
            await api(shared_etcd, "/v3/lease/revoke", {"ID": lease})
            await worker.put("v1/b", b"2")
            await changes_until(changes, Put("v1/b", b"2"))


async def test_compaction_between_reading_and_watching_costs_only_another_reading(shared_etcd: Etcd) -> None:
    config = EtcdConfig(endpoints=(shared_etcd.url,), prefix="compacted/")

    class Compacting(Gateway):
        """Lets the store forget the revision that was just read, the first time it is to be watched."""

        compacted = False

        @asynccontextmanager
        async def stream(self, path: str, body: Any) -> AsyncIterator[Lines]:
            if not self.compacted:
                await worker.put("a", b"2")
                await worker.put("b", b"2")
                await worker.delete("c")
                revision = (await api(shared_etcd, "/v3/kv/range", {"key": b"x"}))["header"]["revision"]
                await api(shared_etcd, "/v3/kv/compaction", {"revision": revision})
                self.compacted = True
            async with super().stream(path, body) as lines:
                yield lines

    compacting = Compacting(config)
    compacting.open()
    async with AsyncExitStack() as stack, joined(shared_etcd.url, prefix="compacted/") as worker:
        stack.push_async_callback(compacting.close)
        for key in ("a", "c", "d"):
            await worker.put(key, b"1")
        async with aclosing(EtcdWatch(compacting, config, "", asyncio.Event()).changes()) as changes:
            assert await changes_until(changes, Synced()) == [Put("a", b"1"), Put("c", b"1"), Put("d", b"1"), Synced()]
            async with asyncio.timeout(PATIENCE):
                told = {await anext(changes) for _ in range(3)}
            assert told == {Put("a", b"2"), Put("b", b"2"), Delete("c")}
            assert compacting.compacted
            await worker.put("e", b"1")
            assert await changes_until(changes, Put("e", b"1")) == [Put("e", b"1")]


class Proxy:
    """Stands before etcd; `freeze` leaves its open connections open and says nothing on them any more.

    It does so from the beginning with the first `silent` connections.
    """

    def __init__(self, target: int, silent: int = 0) -> None:
        self.target = target
        self.silent = silent
        self._links: list[tuple[asyncio.Task[None], asyncio.StreamWriter]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.freeze()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def freeze(self) -> None:
        for task, _ in self._links:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, far_writer]
        if self.silent:
            self.silent -= 1
            return
        self._links.append((asyncio.create_task(self._copy(reader, far_writer)), far_writer))
        self._links.append((asyncio.create_task(self._copy(far_reader, writer)), writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            writer.close()


async def test_a_watch_whose_connection_died_silently_is_resumed(shared_etcd: Etcd) -> None:
    async with (
        Proxy(shared_etcd.port) as proxy,
        joined(shared_etcd.url, prefix="silent/") as worker,
        joined(f"http://127.0.0.1:{proxy.port}", ttl=2, prefix="silent/") as frontend,
        aclosing(frontend.watch("")) as changes,
    ):
        await snapshot(changes)
        proxy.freeze()
        await worker.put("b", b"1")
        assert await changes_until(changes, Put("b", b"1")) == [Put("b", b"1")]


async def test_an_etcd_that_is_slow_to_answer_keeps_no_process_from_starting(shared_etcd: Etcd) -> None:
    async with Proxy(shared_etcd.port, silent=1) as proxy:
        async with joined(f"http://127.0.0.1:{proxy.port}", ttl=2, prefix="slow/") as worker:
            await worker.put("a", b"1")
        assert proxy.silent == 0


async def test_the_next_endpoint_serves_when_one_is_gone(shared_etcd: Etcd) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with joined(dead, shared_etcd.url, prefix="failover/") as worker:
        await worker.put("a", b"1")
        async with aclosing(worker.watch("")) as changes:
            assert await snapshot(changes) == [Put("a", b"1")]


async def test_an_endpoint_that_goes_away_is_left_for_the_next(shared_etcd: Etcd) -> None:
    async with Proxy(shared_etcd.port) as first, Proxy(shared_etcd.port) as second:
        urls = [f"http://127.0.0.1:{proxy.port}" for proxy in (first, second)]
        async with joined(*urls, prefix="leaving/") as worker, aclosing(worker.watch("")) as changes:
            await snapshot(changes)
            await first.__aexit__()
            await worker.put("a", b"1")
            assert await changes_until(changes, Put("a", b"1")) == [Put("a", b"1")]


async def test_an_etcd_that_is_not_there_is_named_with_the_fix() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(DiscoveryError) as raised:
        await EtcdDiscovery(EtcdConfig(endpoints=(url,))).start()
    assert str(raised.value) == (
        f"cannot reach etcd at {url}: Connection refused; start it, or use --discovery-backend file"
    )


async def test_tls_that_fails_is_named_with_the_variables(shared_etcd: Etcd) -> None:
    url = shared_etcd.url.replace("http:", "https:")
    with pytest.raises(DiscoveryError, match=r"TLS failed: .*ETCD_AUTH_CA"):
        await EtcdDiscovery(EtcdConfig(endpoints=(url,))).start()


class SecureEtcd(QuickEtcd):
    """Wants to see a certificate, and shows one."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        files = ["--cert-file", TLS / "localhost.pem", "--key-file", TLS / "localhost.key"]
        return [*super().command(), *map(str, files), "--client-cert-auth", "--trusted-ca-file", str(TLS / "ca.pem")]


async def test_certificates_are_checked_on_both_sides(tmp_path: Path) -> None:
    server = SecureEtcd(tmp_path / "etcd", free_port())
    server.start()
    ca, cert, key = (str(TLS / name) for name in ("ca.pem", "localhost.pem", "localhost.key"))
    try:
        async with (
            joined(server.url, ca=ca, client_cert=cert, client_key=key) as worker,
            aclosing(worker.watch("v1/")) as changes,
        ):
            await snapshot(changes)
            await worker.put("v1/a", b"1")
            await changes_until(changes, Put("v1/a", b"1"))
        with pytest.raises(DiscoveryError, match=r"TLS failed: .*ETCD_AUTH_CLIENT_CERT"):
            await EtcdDiscovery(EtcdConfig(endpoints=(server.url,), ca=ca)).start()
        with pytest.raises(DiscoveryError, match=r"TLS failed: .*certificate verify failed.*ETCD_AUTH_CA"):
            await EtcdDiscovery(EtcdConfig(endpoints=(server.url,), client_cert=cert, client_key=key)).start()
    finally:
        server.stop()


async def test_tls_files_that_are_not_there_are_named(shared_etcd: Etcd) -> None:
    with pytest.raises(DiscoveryError, match=r"cannot use the TLS files /none/ca.pem: .*No such file"):
        await EtcdDiscovery(EtcdConfig(endpoints=(shared_etcd.url,), ca="/none/ca.pem")).start()


async def test_something_else_on_the_port_is_not_taken_for_etcd() -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    answers = (
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "HTTP 404: no .is this etcd"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "not etcd's"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe", "not etcd's"),
        (b"\x00\xffnonsense\r\n\r\n", "cannot reach etcd"),
        (b"", "cannot reach etcd"),
    )
    for answer, complaint in answers:  # noqa: B007
        with pytest.raises(DiscoveryError, match=complaint):
            await EtcdDiscovery(EtcdConfig(endpoints=(url,))).start()
    server.close()
    await server.wait_closed()


async def test_a_login_is_wanted_checked_and_renewed(etcd: Etcd) -> None:
    await api(etcd, "/v3/auth/user/add", {"name": "root", "password": "secret"})
    await api(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
    await api(etcd, "/v3/auth/user/add", {"name": "guest", "password": "guest"})
    await api(etcd, "/v3/auth/enable", {})
    with pytest.raises(DiscoveryError, match="wants a login: set ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD"):
        await EtcdDiscovery(EtcdConfig(endpoints=(etcd.url,))).start()
    with pytest.raises(DiscoveryError, match=r"refuses the login of user 'root'.* check ETCD_AUTH_USERNAME"):
        await EtcdDiscovery(EtcdConfig(endpoints=(etcd.url,), username="root", password="wrong")).start()
    with pytest.raises(DiscoveryError, match="user 'guest' may not use the keys below 'dynamo/'"):
        await EtcdDiscovery(EtcdConfig(endpoints=(etcd.url,), username="guest", password="guest")).start()
    async with (
        joined(etcd.url, username="root", password="secret") as worker,
        aclosing(worker.watch("v1/")) as changes,
    ):
        await snapshot(changes)
        await worker.put("v1/a", b"1")
        await changes_until(changes, Put("v1/a", b"1"))
        etcd.stop()
        etcd.start()  # which forgets every token it gave
        await worker.put("v1/a", b"2")
        await changes_until(changes, Put("v1/a", b"2"))


async def test_a_login_at_an_etcd_without_users_is_harmless(shared_etcd: Etcd) -> None:
    async with joined(shared_etcd.url, prefix="nousers/", username="root", password="secret") as worker:
        await worker.put("a", b"1")
        assert await worker.get_prefix("") == {"a": b"1"}


async def test_a_value_etcd_refuses_is_an_error_and_costs_the_others_nothing(
    shared_etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy etcd takes a while to read and refuse megabytes; a `put` that is not answered in time reports no refusal.
    monkeypatch.setattr(gateway, "CALL_LIMIT", PATIENCE)
    monkeypatch.setattr(registration, "PATIENCE", PATIENCE)
    async with joined(shared_etcd.url, ttl=600, prefix="large/") as worker:
        with pytest.raises(DiscoveryError, match=r"etcd refuses huge: .*(too large|larger than max)"):
            await worker.put("huge", bytes(1_700_000))
        await worker.put("small", b"1")
        assert await worker.get_prefix("") == {"small": b"1"}


async def test_foreign_keys_are_ignored_with_one_warning(shared_etcd: Etcd, caplog: pytest.LogCaptureFixture) -> None:
    async with joined(shared_etcd.url, prefix="foreign/") as worker, aclosing(worker.watch("")) as changes:
        await snapshot(changes)
        for key in (b"foreign/\xff\xfe", b"foreign/caf\xc3\xa9", b"foreign/\xff\xfe", b"foreign/"):
            await api(shared_etcd, "/v3/kv/put", {"key": key, "value": b"\x00"})
        await worker.put("a", b"1")
        assert await changes_until(changes, Put("a", b"1")) == [Put("a", b"1")]
        assert await worker.get_prefix("") == {"a": b"1"}
    assert sum("is not a discovery key" in record.message for record in caplog.records) == 3


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["result", "error", "events", "kv", "key", "canceled"]), inner)
        ),
        max_leaves=8,
    ).map(msgspec.json.encode)
)
def test_no_line_of_a_watch_raises_anything_but_an_outage(line: bytes) -> None:
    watch = EtcdWatch(Gateway(EtcdConfig()), EtcdConfig(), "", asyncio.Event())
    try:
        watch._events(line)
    except Outage:
        pass


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_a_range_ends_after_all_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    end = range_end(prefix)
    inside = key >= prefix and (end == b"\0" or key < end)
    assert inside == key.startswith(prefix)


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(DiscoveryError) as raised:
        read()
    return str(raised.value)


def test_the_environment_says_where_etcd_is() -> None:
    assert EtcdConfig.from_env({}) == EtcdConfig()
    assert EtcdConfig.from_env({"ETCD_ENDPOINTS": ""}).endpoints == ("http://localhost:2379",)
    named = EtcdConfig.from_env({"ETCD_ENDPOINTS": "a:1, http://b:2/,https://c:3,,d,[::1]:4"})
    assert named.endpoints == ("http://a:1", "http://b:2", "https://c:3", "http://d:2379", "http://[::1]:4")
    secure = EtcdConfig.from_env({"ETCD_ENDPOINTS": "a:1", "ETCD_AUTH_CA": "/ca.pem", "ETCD_LEASE_TTL": "30"})
    assert (secure.endpoints, secure.ca, secure.lease_ttl) == (("https://a:1",), "/ca.pem", 30)
    full = EtcdConfig.from_env(
        {
            "ETCD_AUTH_USERNAME": "u",
            "ETCD_AUTH_PASSWORD": "p",
            "ETCD_AUTH_CLIENT_CERT": "/c.pem",
            "ETCD_AUTH_CLIENT_KEY": "/k.pem",
        }
    )
    assert (full.username, full.password, full.client_cert, full.client_key) == ("u", "p", "/c.pem", "/k.pem")


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"ETCD_ENDPOINTS": "ftp://a:1"}, "ETCD_ENDPOINTS: 'ftp://a:1' is not"),
        ({"ETCD_ENDPOINTS": "a:port"}, "ETCD_ENDPOINTS: 'a:port' is not"),
        ({"ETCD_ENDPOINTS": "http://"}, "ETCD_ENDPOINTS: 'http://' is not"),
        ({"ETCD_ENDPOINTS": "a:99999"}, "ETCD_ENDPOINTS: 'a:99999' is not"),
        ({"ETCD_LEASE_TTL": "soon"}, "ETCD_LEASE_TTL must be"),
        ({"ETCD_LEASE_TTL": "0"}, "ETCD_LEASE_TTL must be"),
        ({"ETCD_AUTH_USERNAME": "u"}, "go together"),
        ({"ETCD_AUTH_CLIENT_KEY": "/k.pem"}, "go together"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], complaint: str) -> None:
    assert complaint in refused(lambda: EtcdConfig.from_env(environ))


async def test_a_password_in_an_address_is_not_shown() -> None:
    config = EtcdConfig.from_env({"ETCD_ENDPOINTS": "http://root:hunter2@127.0.0.1:1"})
    with pytest.raises(DiscoveryError, match=r"cannot reach etcd at http://127\.0\.0\.1:1") as refused:
        await EtcdDiscovery(config).start()
    assert "hunter2" not in str(refused.value)
    with pytest.raises(DiscoveryError, match="ETCD_ENDPOINTS: 'http://a:port' is not") as malformed:
        EtcdConfig.from_env({"ETCD_ENDPOINTS": "http://root:hunter2@a:port"})
    assert "hunter2" not in str(malformed.value)
