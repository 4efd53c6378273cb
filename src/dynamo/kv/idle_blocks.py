"""Which idle block of a cache gives way: the one least likely to be needed soon, at its own tenant's expense alone.

Blocks of requests without a session leave in the order in which they became idle. Where several tenants have idle
blocks, the one pays whose turn it would be if all left in that order; which of its blocks goes is decided by how soon
its sessions are expected back (`dynamo.kv.pauses`). So a tenant whose sessions are kept longer loses others of its own
in exchange, and nobody else's leave any earlier. What is called a block here may be a whole cached sequence.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from dynamo.kv.pauses import UNKNOWN, SessionPause

LEFT = 0.25
"""How likely it is that the next turn uses what the last one did not, compared with what it did."""
_ANYBODY = ""


class _Released:
    """Blocks that became idle at one moment: what of them still counts against their tenant."""

    __slots__ = ("at", "count", "turn")

    def __init__(self, at: float, turn: int) -> None:
        self.at = at
        self.turn = turn
        self.count = 0


class _Session:
    """The idle blocks that a session used last."""

    __slots__ = ("blocks", "idle_since", "name", "pause", "tenant", "turns")

    def __init__(self, name: str, tenant: str) -> None:
        self.name = name
        self.tenant = tenant
        self.blocks: OrderedDict[int, _Released] = OrderedDict()
        self.idle_since = 0.0
        self.turns = 0
        self.pause: SessionPause | None = None

    def rate(self, now: float) -> float:
        """Of the blocks that would leave first."""
        idle = now - self.idle_since
        rate = self.pause.rate(idle) if self.pause else UNKNOWN / max(1.0, idle)
        unused = self.turns - next(iter(self.blocks.values())).turn
        return rate * LEFT**unused if unused else rate


class IdleBlocks:
    """Idle blocks by their numbers. Without sessions it is a list in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plain: OrderedDict[int, float] = OrderedDict()
        """Of requests without a session, with the time since when."""
        self._sessions: dict[str, _Session] = {}
        self._session_of: dict[int, _Session] = {}
        self._tenants: dict[str, deque[_Released]] = {}

    def __len__(self) -> int:
        return len(self._plain) + len(self._session_of)

    def __contains__(self, block: int) -> bool:
        return block in self._plain or block in self._session_of

    def add(self, blocks: Sequence[int], session: str = "", tenant: str = _ANYBODY) -> None:
        """They are idle from now on; of those of one call, the first leaves first."""
        if not session:
            self._plain.update(dict.fromkeys(blocks, self.now))
            return
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session(session, tenant)
        known.idle_since, known.pause = self.now, None
        known.turns += 1
        released = _Released(self.now, known.turns)
        released.count = len(blocks)
        self._tenants.setdefault(known.tenant, deque()).append(released)
        for block in blocks:
            known.blocks[block] = released
            self._session_of[block] = known

    def remove(self, block: int) -> None:
        """It is in use again."""
        if not self._session_of or (session := self._session_of.pop(block, None)) is None:
            del self._plain[block]
            return
        self._forgive(session.tenant, session.blocks.pop(block))
        if not session.blocks:
            del self._sessions[session.name]

    def paused(self, pause: SessionPause) -> None:
        known = self._sessions.get(pause.session)
        if known is not None:
            known.pause = pause

    def take(self, count: int) -> list[int]:
        """The blocks to give away, at most as many as there are."""
        plain = self._plain
        if not self._session_of:
            return [plain.popitem(last=False)[0] for _ in range(min(count, len(plain)))]
        taken: list[int] = []
        while len(taken) < count and len(self):
            session, oldest = self._to_leave()
            if session is None or oldest is None:
                taken.append(plain.popitem(last=False)[0])
                continue
            for _ in range(min(count - len(taken), oldest.count, len(session.blocks))):
                block, _released = session.blocks.popitem(last=False)
                del self._session_of[block]
                oldest.count -= 1
                taken.append(block)
            if not session.blocks:
                del self._sessions[session.name]
        return taken

    def next(self) -> int:
        """The block that leaves next; there must be one."""
        session = self._to_leave()[0] if self._session_of else None
        return next(iter(self._plain if session is None else session.blocks))

    def touch(self, block: int) -> None:
        """It was used just now, and is still idle."""
        session = self._session_of.get(block)
        self.remove(block)
        self.add([block], session.name if session else "", session.tenant if session else _ANYBODY)

    def _to_leave(self) -> tuple[_Session | None, _Released | None]:
        """The session whose first block leaves, and what that is counted against; None: the first without a session."""
        tenant, oldest = self._to_pay()
        if oldest is None:
            return None, None
        now = self.now
        mine = (each for each in self._sessions.values() if each.tenant == tenant)
        return min(mine, key=lambda each: (each.rate(now), each.idle_since)), oldest

    def _to_pay(self) -> tuple[str, _Released | None]:
        """The tenant that holds the blocks idle for longest; None stands for those without a session."""
        found: _Released | None = None
        whose = _ANYBODY
        for tenant, released in self._tenants.items():
            while released and not released[0].count:
                released.popleft()
            if released and (found is None or released[0].at < found.at):
                whose, found = tenant, released[0]
        if self._plain and (found is None or next(iter(self._plain.values())) < found.at):
            return _ANYBODY, None
        return whose, found

    def _forgive(self, tenant: str, released: _Released) -> None:
        """A block is used again: it counts no longer, or a younger one in its place if it was paid for already."""
        if not released.count:
            released = next(each for each in self._tenants[tenant] if each.count and each.at >= released.at)
        released.count -= 1
