"""A process that puts one record, says so, and waits to be killed: `python holder.py file|etcd <where> <key>`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dynamo.runtime.discovery import Discovery, EtcdConfig, EtcdDiscovery, FileDiscovery


async def main(backend: str, where: str, key: str) -> None:
    discovery: Discovery
    if backend == "file":
        discovery = FileDiscovery(Path(where))
    else:
        discovery = EtcdDiscovery(EtcdConfig(endpoints=(where,), lease_ttl=4))
    await discovery.start()
    await discovery.put(key, b"held")
    print("held", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
