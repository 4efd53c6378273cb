"""A watch of objects against the stand-in for the API server: what is reported whatever happens to the connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.errors import UnknownResource
from dynamo.kubernetes.resources import WORKER_METADATA
from dynamo.kubernetes.watch import Changed, ObjectRemoved, Replaced, ResourceWatch, Unreadable
from support.certificates import certificate
from support.kube_server import KubeServer
from support.waiting import PATIENCE, until

PLURAL = WORKER_METADATA.plural


class Spec(Struct, frozen=True):
    data: dict[str, int] = {}


class Thing(Struct, frozen=True):
    spec: Spec


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KubeServer]:
    async with KubeServer(tmp_path) as made:
        yield made


@pytest.fixture
async def api(server: KubeServer) -> AsyncIterator[KubernetesApi]:
    access = ClusterAccess(server=server.url, origin="a test", namespace="serving", ca=server.ca, token=b"first")
    async with KubernetesApi(access) as made:
        yield made


@pytest.fixture
def watch(api: KubernetesApi) -> ResourceWatch[Thing]:
    return ResourceWatch(api, WORKER_METADATA, Thing)


Changes = AsyncGenerator[Replaced[Thing] | Changed[Thing] | ObjectRemoved, None]


async def following(changes: Changes) -> Any:
    """The next change, in short: the names and numbers of the objects."""
    async with asyncio.timeout(PATIENCE):
        match await anext(changes):
            case Replaced(objects):
                return {seen.metadata.name: number(seen.object) for seen in objects}
            case Changed(seen):
                return seen.metadata.name, number(seen.object)
            case ObjectRemoved(metadata):
                return metadata.name, None


def number(thing: Thing | Unreadable) -> int | str:
    return "unreadable" if isinstance(thing, Unreadable) else thing.spec.data["n"]


async def test_a_watch_reports_everything_and_then_changes(server: KubeServer, watch: ResourceWatch[Thing]) -> None:
    server.put(PLURAL, "a", {"data": {"n": 1}})
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == {"a": 1}
        server.put(PLURAL, "b", {"data": {"n": 2}})
        assert await following(changes) == ("b", 2)
        server.remove(PLURAL, "a")
        assert await following(changes) == ("a", None)


async def test_a_list_in_pages_is_read_whole(server: KubeServer, watch: ResourceWatch[Thing]) -> None:
    server.page = 2
    for name in "abcde":
        server.put(PLURAL, name, {"data": {"n": 1}})
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == dict.fromkeys("abcde", 1)


async def test_a_broken_watch_resumes_without_reading_again(server: KubeServer, watch: ResourceWatch[Thing]) -> None:
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == {}
        server.put(PLURAL, "a", {"data": {"n": 1}})
        assert await following(changes) == ("a", 1)
        server.end_watches()
        server.put(PLURAL, "a", {"data": {"n": 2}})
        assert await following(changes) == ("a", 2)
        assert watch.reads == 1


async def test_a_version_that_is_no_longer_kept_means_reading_again(
    server: KubeServer, watch: ResourceWatch[Thing]
) -> None:
    server.put(PLURAL, "a", {"data": {"n": 1}})
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == {"a": 1}
        server.remove(PLURAL, "a")
        server.put(PLURAL, "b", {"data": {"n": 2}})
        server.compact()
        while (change := await following(changes)) != {"b": 2}:
            assert isinstance(change, tuple)
        assert watch.reads == 2


async def test_bookmarks_keep_a_quiet_watch_from_reading_again(server: KubeServer, watch: ResourceWatch[Thing]) -> None:
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == {}
        waiting = asyncio.create_task(following(changes))
        await until(lambda: server.watches == 1)
        server.put("deployments", "another", {})  # a change that this watch has no event for
        while watch.version != "1":
            await asyncio.sleep(0)
        server.put(PLURAL, "a", {"data": {"n": 1}})
        assert await waiting == ("a", 1)


async def test_an_outage_reports_nothing_and_ends_with_the_difference(
    server: KubeServer, watch: ResourceWatch[Thing], caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == {}
        waiting = asyncio.create_task(following(changes))
        await until(lambda: server.watches == 1)
        await server.stop()
        await until(lambda: watch.is_down)
        await server.begin()
        server.put(PLURAL, "a", {"data": {"n": 1}})
        assert await waiting == ("a", 1)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


async def test_an_object_of_another_shape_is_reported_as_unreadable(
    server: KubeServer, watch: ResourceWatch[Thing]
) -> None:
    server.put(PLURAL, "a", {"data": {"n": "one"}})
    async with aclosing(watch.changes()) as changes:
        assert await following(changes) == {"a": "unreadable"}


async def test_a_resource_without_a_definition_is_named(server: KubeServer, api: KubernetesApi) -> None:
    server.unknown = {PLURAL}
    with pytest.raises(UnknownResource, match=r"knows no dynamoworkermetadatas of nvidia\.com/v1alpha1"):
        await api.list(WORKER_METADATA)


def established(port: int) -> bool:
    """Whether a connection to this port of this machine is open at its client's end."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


async def test_a_watch_that_ends_before_its_answer_has_begun_leaves_no_connection(tmp_path: Path) -> None:
    """Also where the server takes no part in an orderly end."""
    ca, key = certificate(tmp_path, "apiserver")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(ca, key)
    asked, writers = asyncio.Event(), []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)
        cast(asyncio.ReadTransport, writer.transport).pause_reading()
        asked.set()

    async with await asyncio.start_server(hang, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        access = ClusterAccess(server=f"https://127.0.0.1:{port}", origin="a test", namespace="serving", ca=ca)
        try:
            async with KubernetesApi(access) as api:
                watch = ResourceWatch(api, WORKER_METADATA, Thing)
                watch.version = "1"
                following = asyncio.ensure_future(anext(watch.changes()))
                await asked.wait()
                assert established(port)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await asyncio.sleep(0)
            assert not established(port)
        finally:
            for writer in writers:
                writer.transport.abort()
