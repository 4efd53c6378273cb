"""A follower notices that its leader is gone."""

from __future__ import annotations

import asyncio

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
