"""Streams that any frontend of the deployment continues: their names, and where the worker is that keeps one.

A client names its stream. All that another frontend needs follows from the name and the owner of the client's key:
what to ask workers for, the id of the request, and the seed of an answer that must be computed again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import uuid
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, field

from dynamo.protocols.errors import DynamoException
from dynamo.protocols.streams import StreamClaim, StreamFacts
from dynamo.protocols.worker_name import worker_name
from dynamo.router.delivery.continuation import SEED_BITS
from dynamo.router.delivery.delivery import KeptAt
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.stream import FirstAnswer

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""A worker that does not say within this time whether it keeps a stream is taken to have none."""


class NamedRequest(Struct, frozen=True):
    """The request for a stream, which its worker keeps for frontends that never got it."""

    path: str
    body: bytes
    """JSON."""
    created: int
    request_id: str


class FoundStream(Struct, frozen=True):
    kept_at: KeptAt
    request: NamedRequest


class StreamName(Struct, frozen=True):
    """A stream as its owner names it: another owner's stream of the same name is another one."""

    name: str
    owner: str

    def digest(self, choice: int) -> str:
        return hashlib.sha256(f"{self.owner}\0{self.name}\0{choice}".encode()).hexdigest()

    @property
    def request_id(self) -> str:
        return str(uuid.UUID(hex=self.digest(0)[:32]))

    def seed(self, choice: int) -> int:
        return int(self.digest(choice)[32:48], 16) % (1 << SEED_BITS)

    def call_ids(self, choice: int) -> Callable[[], str]:
        """The ids of the choice's tool calls, one after the other."""
        numbers, digest = itertools.count(), self.digest(choice)
        return lambda: f"call_{hashlib.sha256(f'{digest}/{next(numbers)}'.encode()).hexdigest()[:24]}"

    def claim(self, choice: int) -> StreamClaim:
        return StreamClaim(self.digest(choice), self.owner)


class ResumableStream(Struct):
    """One stream at a frontend."""

    name: StreamName
    request: NamedRequest
    after: tuple[int, ...] = ()
    """How many events of each choice the client has."""
    continues: bool = False
    """The client has asked before: a worker may keep the stream."""
    found: dict[int, KeptAt] = field(default_factory=dict)
    """Where the worker is that keeps a choice, as far as it was looked for."""

    def claim(self, choice: int) -> StreamClaim:
        claim = self.name.claim(choice)
        return claim if choice else msgspec.structs.replace(claim, facts=msgspec.msgpack.encode(self.request))

    async def kept_at(self, choice: int, instances: InstanceSet) -> KeptAt | None:
        if not self.continues:
            return None
        if choice not in self.found:
            likely = [at.instance_id for at in self.found.values()]
            found = await find(instances, self.name.claim(choice), likely)
            if found is None:
                return None
            self.found[choice] = found[0]
        return self.found[choice]


async def find_stream(name: StreamName, instances: InstanceSet, likely: Sequence[int] = ()) -> FoundStream | None:
    """The stream of this name, if a worker among these instances keeps it; the `likely` ones are asked first."""
    found = await find(instances, name.claim(0), likely)
    if found is None:
        return None
    kept_at, facts = found
    return FoundStream(kept_at, msgspec.msgpack.decode(facts.facts, type=NamedRequest))


async def find(instances: InstanceSet, claim: StreamClaim, likely: Sequence[int]) -> tuple[KeptAt, StreamFacts] | None:
    asked = msgspec.structs.replace(claim, act="describe")
    first = [id for id in dict.fromkeys(likely) if id in instances]
    others = [id for id in instances.ids() if id not in first]
    for some in (first, others):
        answers = await asyncio.gather(*(_ask(instances, id, asked) for id in some))
        for id, facts in zip(some, answers, strict=True):
            if facts is not None:
                return KeptAt(id, continues=facts.resumed), facts
    return None


async def _ask(instances: InstanceSet, instance_id: int, claim: StreamClaim) -> StreamFacts | None:
    context = Context()
    context.claim = claim
    answer = FirstAnswer()
    try:
        async with asyncio.timeout(ASK_SECONDS):
            channel = instances.channel(instance_id)
            if not channel.ready:
                await channel.open()
            channel.send(None, context, answer, item_type=StreamFacts)
            facts: StreamFacts = await answer.value
            return facts
    except (DynamoException, TimeoutError) as error:
        log.debug("worker %s does not keep a stream: %s", worker_name(instance_id), error)
        return None
    finally:
        context.kill()
