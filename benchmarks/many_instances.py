"""Registers many instances of one model under one lease and waits; run as a process by discovery.py."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

import msgspec
import uvloop

from dynamo.model import HubConfig, build_card, resolve
from dynamo.protocols.card import ModelType
from dynamo.protocols.instance import Instance
from dynamo.runtime import DistributedRuntime, EndpointId, RuntimeConfig, records
from dynamo.runtime.names import card_key, instance_key, new_instance_id


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    local = resolve(str(options.model), config=HubConfig.from_env(os.environ), weights=False)
    card = msgspec.json.encode(build_card(local, name="many", model_type=ModelType.Backend))
    endpoint = EndpointId("bench", "many", "generate")
    async with DistributedRuntime(config=RuntimeConfig.from_env(os.environ)) as runtime:
        for _ in range(options.count):
            number = new_instance_id()
            instance = Instance(
                instance_id=number,
                namespace=endpoint.namespace,
                component=endpoint.component,
                endpoint=endpoint.name,
                transport="tcp",
                address="127.0.0.1:9",
            )
            await runtime.discovery.put(card_key(endpoint, number), card)
            await runtime.discovery.put(instance_key(endpoint, number), records.encode(instance))
        print("registered", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
