"""Asks greedy completions until its input ends: `python -m support.cluster.asking NAMESPACE SERVICE WIDTH HOW PROMPTS`.

It follows the Service's endpoints and takes one that is ready, as a node's proxy does. Each answer is counted on a
line; the last line has the texts that came and what failed. HOW is `whole` (an answer at once, a failure is one) or
`streams` (named streams, which go on at another frontend when theirs is gone). PROMPTS is how many different ones
there are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from contextlib import aclosing
from typing import Any

import aiohttp

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.resources import ENDPOINT_SLICES
from dynamo.kubernetes.watch import Changed, Replaced, ResourceWatch, Unreadable
from support.stream_client import PAUSE, StreamClient

BODY = {"model": "tiny", "max_tokens": 24, "temperature": 0}
PROMPT = "The quick brown fox"
MOST_CONNECTIONS = 200
"""Connections of one stream, before it counts as failed."""


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
    def __init__(self, endpoints: ServiceEndpoints, how: str, prompts: int) -> None:
        self._endpoints = endpoints
        self._how = how
        self._prompts = prompts
        self._number = itertools.count()
        self.ended = False
        self.done = 0
        self.reconnected = 0
        self.texts: dict[int, set[str]] = {}
        """By prompt."""
        self.failed: list[str] = []

    async def run(self) -> None:
        while not self.ended:
            if self._endpoints.next() is None and self._how == "whole":
                await asyncio.sleep(0.01)
                continue
            number = next(self._number) % self._prompts
            body = {**BODY, "prompt": f"{PROMPT} {number or ''}".strip()}
            try:
                # A connection each: whoever answers may be on its way out.
                async with aiohttp.ClientSession() as session:
                    text = await (self._whole(session, body) if self._how == "whole" else self._stream(session, body))
                self.texts.setdefault(number, set()).add(text)
            except (aiohttp.ClientError, OSError, ValueError, AssertionError) as error:
                self.failed.append(f"{time.time():.3f} {error!r}")
            self.done += 1
            print(self.done, flush=True)

    async def _whole(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> str:
        async with session.post(f"http://{self._endpoints.next()}:8000/v1/completions", json=body) as answer:
            whole = await answer.json()
            if answer.status != 200:
                raise ValueError(f"{answer.status} {whole}")
            return str(whole["choices"][0]["text"])

    async def _stream(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> str:
        client = StreamClient(session, "/v1/completions", body)
        while not client.ended:
            if client.connections > MOST_CONNECTIONS:
                raise ValueError(f"no end after {MOST_CONNECTIONS} connections: {client.error}")
            if (address := self._endpoints.next()) is not None:
                self.reconnected += client.connections > 0
                await client.attempt(f"http://{address}:8000")
            if not client.ended:
                await asyncio.sleep(PAUSE)
        events = (json.loads(text.removeprefix("data: ")) for text in client.texts if text != "data: [DONE]")
        return "".join(choice["text"] for event in events for choice in event["choices"])


async def main(namespace: str, service: str, width: int, how: str, prompts: int) -> None:
    async with KubernetesApi(find_access(os.environ), namespace) as api:
        endpoints = ServiceEndpoints(api, service)
        following = asyncio.create_task(endpoints.follow())
        asker = Asker(endpoints, how, prompts)
        asking = [asyncio.create_task(asker.run()) for _ in range(width)]
        await asyncio.to_thread(sys.stdin.read)
        asker.ended = True
        await asyncio.gather(*asking)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    texts = sorted(text for some in asker.texts.values() for text in some)
    summary = {"done": asker.done, "texts": texts, "reconnected": asker.reconnected, "failed": asker.failed}
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    namespace, service, width, how, prompts = sys.argv[1:]
    asyncio.run(main(namespace, service, int(width), how, int(prompts)))
