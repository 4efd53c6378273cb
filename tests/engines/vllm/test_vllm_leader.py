"""An engine on several nodes: a follower takes the layout of its leader, and notices that it is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore
from vllm.platforms import interface

from dynamo.engines.base import EngineError
from dynamo.engines.vllm.nodes.cpu_ranks import announce_ranks, learn_ranks
from dynamo.engines.vllm.nodes.followers import Followers, stay_with, until_leader_leaves
from dynamo.engines.vllm.nodes.layout import Announcement, adopt, layout_of_leader
from support.waiting import until


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
    reading = asyncio.create_task(asyncio.to_thread(layout_of_leader, follower, lambda: False))
    announcement = Announcement(leader, 7, "secret")
    store = await asyncio.to_thread(TCPStore, "127.0.0.1", unused_tcp_port, is_master=True, wait_for_workers=False)
    layout = await reading
    adopt(layout, follower)
    assert layout is not None
    assert (follower.tensor_parallel_size, follower.pipeline_parallel_size) == (8, 2)
    assert (layout.port, layout.secret) == (7, "secret")
    announcement.stop()
    del store


async def test_a_follower_that_is_stopped_no_longer_waits_for_its_leader(unused_tcp_port: int) -> None:
    follower = SimpleNamespace(master_addr="127.0.0.1", master_port=unused_tcp_port)
    with pytest.raises(EngineError, match="stopped before its leader came"):
        await asyncio.to_thread(layout_of_leader, follower, lambda: True)


async def test_a_follower_of_a_leader_that_says_nothing_must_be_given_its_layout() -> None:
    with pytest.raises(EngineError, match="give it here too"):
        adopt(None, SimpleNamespace())


async def test_a_leader_notices_that_a_follower_ended() -> None:
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    followers = Followers(lambda: lost.set_result(None))
    await followers.listen()
    held = await asyncio.to_thread(stay_with, "127.0.0.1", followers.port, followers.secret)
    stranger = await asyncio.to_thread(stay_with, "127.0.0.1", followers.port, "x" * len(followers.secret))
    assert await asyncio.to_thread(stranger.recv, 1) == b""
    assert not lost.done()
    held.close()
    stranger.close()
    await lost
    await followers.close()


async def test_a_leader_that_closes_lost_nobody() -> None:
    followers = Followers(pytest.fail)
    await followers.listen()
    held = await asyncio.to_thread(stay_with, "127.0.0.1", followers.port, followers.secret)
    await until(lambda: followers.count)
    await followers.close()
    assert await asyncio.to_thread(held.recv, 1) == b""
    held.close()


def test_vllms_processes_learn_how_many_of_them_share_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_assigned_physical_gpu_ids", None)
    environ: dict[str, str] = {}
    announce_ranks(environ, SimpleNamespace(nnodes=1, tensor_parallel_size=8, pipeline_parallel_size=1))
    assert not environ
    announce_ranks(environ, SimpleNamespace(nnodes=2, tensor_parallel_size=4, pipeline_parallel_size=2))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    learn_ranks()
    assert interface.get_assigned_physical_gpu_ids() == [0, 1, 2, 3]
