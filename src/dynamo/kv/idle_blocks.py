"""Which idle block of a cache gives way: the one least likely to be needed soon, at its own tenant's expense alone.

Blocks of requests without a session leave in the order in which they became idle. Where several tenants have idle
blocks, the one pays whose turn it would be if all left in that order; which of its blocks goes is decided by how soon
its sessions are expected back (`dynamo.kv.pauses`). So a tenant whose sessions are kept longer loses others of its own
in exchange. Others lose blocks earlier only where what that tenant lost has to be computed and kept again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from dynamo.kv.pauses import UNKNOWN, SessionPause

LEFT = 0.25
"""How likely it is that the next turn uses what the last one did not, compared with what it did."""
FEW = 64
RANK_SECONDS = 1e-4
"""More than a few sessions are ranked anew after so long for each of them, so that a full cache costs little."""
_ANYBODY = ""


class _Released:
    """Blocks that became idle at one moment: what of them still counts against their tenant."""

    __slots__ = ("at", "count", "turn")

    def __init__(self, at: float, turn: int) -> None:
        self.at = at
        self.turn = turn
        self.count = 0


class IdleSession:
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
        """How soon its blocks that leave first are expected to be needed."""
        idle = now - self.idle_since
        rate = self.pause.rate(idle) if self.pause else UNKNOWN / max(1.0, idle)
        unused = self.turns - next(iter(self.blocks.values())).turn
        return rate * LEFT**unused if unused else rate


class IdleTenant:
    """The sessions of one tenant that have idle blocks."""

    __slots__ = ("ranked", "ranked_at", "released", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, IdleSession] = {}
        self.released: deque[_Released] = deque()
        """In the order of time. Their counts add up to the idle blocks."""
        self.ranked: list[IdleSession] = []
        """Those that leave next, the first one last, as of a moment ago; only of many sessions."""
        self.ranked_at = 0.0

    def oldest(self) -> _Released | None:
        while self.released and not self.released[0].count:
            self.released.popleft()
        return self.released[0] if self.released else None

    def forgive(self, released: _Released) -> None:
        """A block is used again and counts no longer; if another was taken in its place, the youngest does not."""
        if not released.count:
            while not self.released[-1].count:
                self.released.pop()
            released = self.released[-1]
        released.count -= 1

    def next(self, now: float) -> IdleSession:
        """The session that is expected last."""
        count = len(self.sessions)
        if count <= FEW:
            return min(self.sessions.values(), key=lambda each: (each.rate(now), each.idle_since))
        if now - self.ranked_at > count * RANK_SECONDS:
            self.ranked.clear()
        while self.ranked and not self.ranked[-1].blocks:
            self.ranked.pop()
        if not self.ranked:
            by_rate = sorted(self.sessions.values(), key=lambda each: (each.rate(now), each.idle_since))
            self.ranked, self.ranked_at = by_rate[count // 2 :: -1], now
        return self.ranked[-1]


class IdleBlocks:
    """Idle blocks by their numbers. Without sessions it is a list in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plain: OrderedDict[int, float] = OrderedDict()
        """The blocks of requests without a session, with the time since when."""
        self._session_of: dict[int, IdleSession] = {}
        self._sessions: dict[str, IdleSession] = {}
        self._tenants: dict[str, IdleTenant] = {}

    def __len__(self) -> int:
        return len(self._plain) + len(self._session_of)

    def __contains__(self, block: int) -> bool:
        return block in self._plain or block in self._session_of

    def add(self, blocks: Sequence[int], session: str = "", tenant: str = _ANYBODY) -> None:
        """They are idle from now on; of those of one call, the first leaves first."""
        if not blocks:
            return
        if not session:
            plain, now = self._plain, self.now
            for block in blocks:
                plain[block] = now
            return
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = IdleSession(session, tenant)
            self._tenants.setdefault(tenant, IdleTenant()).sessions[session] = known
        known.idle_since, known.pause = self.now, None
        known.turns += 1
        released = _Released(self.now, known.turns)
        released.count = len(blocks)
        counted = self._tenants[known.tenant]
        if len(counted.released) > FEW + 2 * len(self._session_of):
            counted.released = deque(each for each in counted.released if each.count)
        counted.released.append(released)
        for block in blocks:
            known.blocks[block] = released
            self._session_of[block] = known

    def remove(self, block: int) -> None:
        """It is in use again."""
        if not self._session_of or (session := self._session_of.pop(block, None)) is None:
            del self._plain[block]
            return
        self._tenants[session.tenant].forgive(session.blocks.pop(block))
        if not session.blocks:
            self._drop(session)

    def paused(self, pause: SessionPause) -> None:
        known = self._sessions.get(pause.session)
        if known is not None:
            known.pause = pause
            if pause.final:
                self._tenants[known.tenant].ranked.append(known)

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
                self._drop(session)
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

    def _to_leave(self) -> tuple[IdleSession | None, _Released | None]:
        """The session whose first block leaves, and what that is counted against; None: the first without a session."""
        found: tuple[IdleTenant, _Released] | None = None
        for tenant in self._tenants.values():
            oldest = tenant.oldest()
            if oldest is not None and (found is None or oldest.at < found[1].at):
                found = tenant, oldest
        if found is None or (self._plain and next(iter(self._plain.values())) < found[1].at):
            return None, None
        return found[0].next(self.now), found[1]

    def _drop(self, session: IdleSession) -> None:
        """It has no idle block left."""
        del self._sessions[session.name]
        tenant = self._tenants[session.tenant]
        del tenant.sessions[session.name]
        if not tenant.sessions:
            del self._tenants[session.tenant]
