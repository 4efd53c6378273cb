"""Reads recorded agent sessions: a file, or a folder of files, of nested requests with blocks local to each session."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field, structs

from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.protocols.errors import InvalidArgument


class AgentRequest(Struct, frozen=True, kw_only=True):
    """One request, or a sub-agent with requests of its own, whose times count from its beginning."""

    type: str
    t: float = 0.0
    input_tokens: int = field(name="in", default=0)
    output_tokens: int = field(name="out", default=0)
    hash_ids: tuple[int, ...] = ()
    api_time: float = 0.0
    think_time: float = 0.0
    stop: str = ""
    agent_id: str = ""
    duration_ms: float = 0.0
    tool_tokens: int = 0
    system_tokens: int = 0
    requests: tuple[AgentRequest, ...] = ()


class AgentSession(Struct, frozen=True, kw_only=True):
    id: str
    block_size: int
    tool_tokens: int = 0
    system_tokens: int = 0
    requests: tuple[AgentRequest, ...]


class AgentTraffic(Struct, frozen=True, kw_only=True):
    """How sessions are sent: each starts within `starts` seconds and pauses for as long as it did, or `pauses`."""

    starts: float = 300.0
    pauses: float = 600.0
    largest: int | None = None
    """Bytes of a session's file above which it is left out."""
    parity: int | None = None
    """0 takes the sessions with even numbers only, 1 those with odd ones."""
    sessions: int | None = None
    """How many of the sessions are drawn; all if None."""
    share_tools: bool = False
    """Whether sessions with equal counts of tool and system tokens begin with the same blocks."""
    seed: int = 0


def read_sessions(path: Path, asked: AgentTraffic) -> list[AgentSession]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    try:
        if asked.largest is not None:
            files = [file for file in files if file.stat().st_size < asked.largest]
        if asked.parity is not None:
            files = [file for file in files if int(file.stem.rpartition("_")[2]) % 2 == asked.parity]
        decode = msgspec.json.Decoder(AgentSession).decode
        found = []
        for file in files:
            try:
                found.append(decode(file.read_bytes()))
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise InvalidArgument(f"{file}: {error}") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read the sessions of {path}: {error}") from None
    if not found:
        raise InvalidArgument(f"{path} has no agent session")
    return found


def read_agents(path: Path, asked: AgentTraffic | None = None) -> Iterator[SimulatedRequest]:
    """The sessions in the order of their starts, which are drawn at random; turns follow each other's answers."""
    asked = asked or AgentTraffic()
    rng = random.Random(asked.seed)
    sessions = read_sessions(path, asked)
    if asked.sessions is not None:
        sessions = rng.sample(sessions, min(asked.sessions, len(sessions)))
    starts = sorted(rng.uniform(0, asked.starts) for _ in sessions)
    starts = [start - starts[0] for start in starts]
    rng.shuffle(sessions)
    blocks = _Blocks(asked.share_tools)
    for start, session in zip(starts, sessions, strict=True):
        own = blocks.of(session)
        ended = 0.0
        previous = ""
        for number, each in enumerate(session.requests):
            label = f"{session.id}, request {number + 1}"
            if each.requests:
                name = f"{session.id}/{each.agent_id or number}"
                # A sub-agent is recorded when it ends.
                delay = max(0.0, each.t - each.duration_ms / 1000 - ended)
                yield from _sub_agent(each, name, previous, start, delay, session, own, asked.pauses)
                continue
            if each.input_tokens < 1:
                continue
            yield SimulatedRequest(
                at=None if previous else start,
                input_tokens=each.input_tokens,
                output_tokens=max(1, each.output_tokens),
                block_ids=own.ids(each, session.tool_tokens + session.system_tokens),
                block_size=session.block_size,
                session=session.id,
                delay=min(each.think_time, asked.pauses) if previous else 0.0,
                label=label,
                ended_by=each.stop,
            )
            previous = session.id
            ended = each.t + each.api_time


def _sub_agent(
    agent: AgentRequest,
    name: str,
    parent: str,
    start: float,
    delay: float,
    session: AgentSession,
    own: _OwnBlocks,
    pauses: float,
) -> Iterator[SimulatedRequest]:
    """A session of its own, which begins when the parent's request before it has ended."""
    first = True
    for number, each in enumerate(agent.requests):
        if each.requests or each.input_tokens < 1:
            continue
        yield SimulatedRequest(
            at=None if parent or not first else start,
            after=parent if first else "",
            input_tokens=each.input_tokens,
            output_tokens=max(1, each.output_tokens),
            block_ids=own.ids(each, agent.tool_tokens + agent.system_tokens),
            block_size=session.block_size,
            session=name,
            delay=min(delay if first else each.think_time, pauses),
            label=f"{name}, request {number + 1}",
            ended_by=each.stop,
        )
        first = False


def with_pauses(requests: Iterable[SimulatedRequest]) -> list[SimulatedRequest]:
    """Each request with the pause that follows it; the last one of each session is final."""
    known = list(requests)
    next_of: dict[str, float] = {}
    for at in range(len(known) - 1, -1, -1):
        each = known[at]
        if each.session:
            pause = next_of.get(each.session)
            known[at] = structs.replace(each, pause=pause, final=pause is None)
            next_of[each.session] = each.delay
    return known


class _Blocks:
    """Gives each session's local blocks names of their own; with `share`, equal tools have equal names."""

    def __init__(self, share: bool) -> None:
        self._share = share
        self._next = 1
        self._tools: dict[int, int] = {}
        """By the number of tool and system tokens, where their blocks' names begin."""

    def of(self, session: AgentSession) -> _OwnBlocks:
        first = self._next
        self._next += 1 + max((max(ids) for ids in _ids(session.requests)), default=0)
        return _OwnBlocks(self, first, session.block_size)

    def tools(self, tokens: int, count: int) -> range:
        if not self._share:
            return range(0)
        if tokens not in self._tools:
            self._tools[tokens] = self._next
            self._next += count
        return range(self._tools[tokens], self._tools[tokens] + count)


class _OwnBlocks:
    def __init__(self, blocks: _Blocks, first: int, size: int) -> None:
        self._blocks = blocks
        self._first = first
        self._size = size

    def ids(self, request: AgentRequest, tools: int) -> tuple[int, ...]:
        fits = request.input_tokens // self._size
        own = [self._first + one for one in request.hash_ids[:fits]]
        shared = self._blocks.tools(tools, tools // self._size)[: len(own)]
        return (*shared, *own[len(shared) :])


def _ids(requests: Iterable[AgentRequest]) -> Iterator[tuple[int, ...]]:
    for each in requests:
        if each.hash_ids:
            yield each.hash_ids
        yield from _ids(each.requests)
