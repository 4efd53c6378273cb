"""Asks greedy completions until its input ends: `python -m support.cluster.asking NAMESPACE SERVICE WIDTH`.

It follows the Service's endpoints and takes one that is ready, as a node's proxy does. Each answer is counted on a
line; the last line has the texts that came and what failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from contextlib import aclosing
from typing import Any

import aiohttp

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.resources import ENDPOINT_SLICES
from dynamo.kubernetes.watch import Changed, Replaced, ResourceWatch, Unreadable

BODY = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 24, "temperature": 0}


class ServiceEndpoints:
    """Those that are ready."""

    def __init__(self, api: KubernetesApi, service: str) -> None:
        labels = f"kubernetes.io/service-name={service}"
        self._watch: ResourceWatch[Any] = ResourceWatch(api, ENDPOINT_SLICES, dict, labels=labels)
        self._slices: dict[str, list[str]] = {}
        self._turn = itertools.count()

    async def follow(self) -> None:
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Replaced(objects):
                        for seen in objects:
                            self._see(seen.object)
                    case Changed(seen):
                        self._see(seen.object)

    def _see(self, found: dict[str, Any] | Unreadable) -> None:
        assert not isinstance(found, Unreadable)
        ready = (each for each in found["endpoints"] or () if each.get("conditions", {}).get("ready"))
        self._slices[found["metadata"]["name"]] = [address for each in ready for address in each["addresses"]]

    def next(self) -> str | None:
        addresses = sorted(itertools.chain.from_iterable(self._slices.values()))
        return addresses[next(self._turn) % len(addresses)] if addresses else None


class Asker:
    def __init__(self, endpoints: ServiceEndpoints) -> None:
        self._endpoints = endpoints
        self.ended = False
        self.done = 0
        self.texts: set[str] = set()
        self.failed: list[str] = []

    async def run(self) -> None:
        while not self.ended:
            if (address := self._endpoints.next()) is None:
                await asyncio.sleep(0.01)
                continue
            try:
                # A connection each: whoever answers may be on its way out.
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"http://{address}:8000/v1/completions", json=BODY) as answer,
                ):
                    whole = await answer.json()
                    if answer.status == 200:
                        self.texts.add(whole["choices"][0]["text"])
                    else:
                        self.failed.append(f"{answer.status} {whole}")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                self.failed.append(f"{address}: {error!r}")
            self.done += 1
            print(self.done, flush=True)


async def main(namespace: str, service: str, width: int) -> None:
    async with KubernetesApi(find_access(os.environ), namespace) as api:
        endpoints = ServiceEndpoints(api, service)
        following = asyncio.create_task(endpoints.follow())
        asker = Asker(endpoints)
        asking = [asyncio.create_task(asker.run()) for _ in range(width)]
        await asyncio.to_thread(sys.stdin.read)
        asker.ended = True
        await asyncio.gather(*asking)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    print(json.dumps({"done": asker.done, "texts": sorted(asker.texts), "failed": asker.failed}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
