"""Workers around llama.cpp as processes, behind a frontend."""

from __future__ import annotations

from pathlib import Path

from support.kv_asking import follows_engines
from support.stack import Stack


async def test_the_router_knows_what_each_engine_holds(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"DYN_TCP_RPC_HOST": "127.0.0.1"}) as stack:
        words = ("-m", "dynamo.llama_cpp", "tiny", "--model-name", "m", "--n-threads", "1")
        workers = [await stack.python(*words) for _ in range(2)]
        ids = [int((await each.line("as instance ")).rpartition(" ")[2], 16) for each in workers]
        frontend = await stack.frontend("--router-mode", "kv")
        await frontend.until_models("m")
        await frontend.until_instances(2)
        await follows_engines(frontend, ids, block=16)
