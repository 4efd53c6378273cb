"""Mockers in this process, each on a runtime of its own, serving at ns.backend.generate."""

from __future__ import annotations

import asyncio
from typing import Any

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.llm.register import register_card
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType
from dynamo.runtime import DistributedRuntime, Local
from dynamo.runtime import RuntimeConfig as Network
from dynamo.worker import serve_engine
from support.waiting import until


class Mocker:
    def __init__(self, network: Network, local: Local, args: MockerArgs) -> None:
        self.runtime = DistributedRuntime(config=network, local=local)
        self.engine = MockerEngine(args)
        self.endpoint = self.runtime.endpoint("ns.backend.generate")
        self._serving: asyncio.Task[None] | None = None

    @property
    def worker_id(self) -> int:
        return self.runtime.instance_id

    async def __aenter__(self) -> Mocker:
        info = await self.engine.start()
        card = ModelCard(
            name="mock",
            model_type=ModelType.Backend.value,
            kv_cache_block_size=info.kv_cache_block_size or 0,
            runtime_config=ModelRuntimeConfig(
                total_kv_blocks=info.total_kv_blocks, data_parallel_size=info.data_parallel_size
            ),
        )
        await register_card(self.endpoint, card)
        self._serving = asyncio.create_task(serve_engine(self.endpoint, self.engine))
        client = await self.endpoint.client()
        await until(lambda: self.worker_id in client.instance_ids())
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.runtime.shutdown()
        assert self._serving
        await self._serving
        await self.engine.close()
        await self.runtime.close()

    def cached(self, dp_rank: int = 0) -> set[int]:
        return self.engine.ranks.schedulers[dp_rank].pool.cached_hashes()


async def answer(client: Any, token_ids: list[int], max_tokens: int, worker_id: int, **routing: Any) -> list[int]:
    request = {"token_ids": token_ids, "stop_conditions": {"max_tokens": max_tokens}, "routing": routing}
    stream = await client.direct(request, worker_id, annotated=False)
    return [token for item in [item async for item in stream] for token in item["token_ids"]]
