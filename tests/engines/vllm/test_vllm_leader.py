"""A follower takes the layout of its leader, and notices that it is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from dynamo.engines.base import EngineError
from dynamo.engines.vllm.layout import Announcement, adopt_layout
from dynamo.engines.vllm.leader import until_leader_leaves


async def test_a_follower_waits_as_long_as_its_leader_is_there() -> None:
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: connected.set_result(writer), "127.0.0.1", 0)
    async with server:
        watching = asyncio.create_task(until_leader_leaves(*server.sockets[0].getsockname()))
        leader = await connected
        assert not watching.done()
        leader.close()
        await watching


async def test_a_leader_that_takes_no_connection_is_gone(unused_tcp_port: int) -> None:
    await until_leader_leaves("127.0.0.1", unused_tcp_port)


async def test_a_follower_that_closes_stops_waiting() -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    async def leader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        assert await reader.read() == b""
        writer.close()
        ended.set()

    async with await asyncio.start_server(leader, "127.0.0.1", 0) as server:
        watching = asyncio.create_task(until_leader_leaves(*server.sockets[0].getsockname()))
        await begun.wait()
        watching.cancel()
        await asyncio.wait([watching])
        assert watching.cancelled()
        await ended.wait()


async def test_a_follower_takes_the_layout_of_its_leader(unused_tcp_port: int) -> None:
    leader = SimpleNamespace(
        master_addr="127.0.0.1", master_port=unused_tcp_port, tensor_parallel_size=8, pipeline_parallel_size=2
    )
    follower = SimpleNamespace(master_addr="127.0.0.1", master_port=unused_tcp_port)
    adopting = asyncio.create_task(asyncio.to_thread(adopt_layout, follower, lambda: False))
    announcement = Announcement(leader)
    store = await asyncio.to_thread(TCPStore, "127.0.0.1", unused_tcp_port, is_master=True, wait_for_workers=False)
    await adopting
    assert (follower.tensor_parallel_size, follower.pipeline_parallel_size) == (8, 2)
    announcement.stop()
    del store


async def test_a_follower_that_is_stopped_no_longer_waits_for_its_leader(unused_tcp_port: int) -> None:
    follower = SimpleNamespace(master_addr="127.0.0.1", master_port=unused_tcp_port)
    with pytest.raises(EngineError, match="stopped before its leader came"):
        await asyncio.to_thread(adopt_layout, follower, lambda: True)
