"""The context of one request: its id, its metadata, and whether the caller still wants the answer."""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections.abc import Callable

from dynamo.protocols.engine import Session, Tenant
from dynamo.protocols.streams import StreamClaim

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Context:
    """`stop_generating` asks for an early but orderly end; `kill` says that the caller is gone."""

    __slots__ = (
        "_id", "_killed", "_listeners", "_span_id", "_stopped", "claim", "metadata", "session", "stopped_by_caller",
        "tenant", "traceparent", "when_caller_lost",
    )  # fmt: skip

    def __init__(
        self, id: str | None = None, metadata: dict[str, str] | None = None, *, traceparent: str | None = None
    ) -> None:
        self._id = id or str(uuid.uuid4())
        self.metadata: dict[str, str] = metadata if metadata is not None else {}
        self.traceparent = traceparent
        self._span_id: str | None = None
        self.tenant: Tenant | None = None
        """Where requests wait, on whose behalf this one is made. It stays in this process."""
        self.session: Session | None = None
        """The conversation that it is a turn of. It stays in this process too."""
        self.claim: StreamClaim | None = None
        """What the request plane says of the stream to the worker, if it is to outlive its connection."""
        self.when_caller_lost: Callable[[Context], object] | None = None
        """At a worker: what to do when the connection to the caller is lost, instead of killing this."""
        self._stopped = False
        self._killed = False
        self.stopped_by_caller = False
        """At a worker: the caller stopped or killed it, not the handler itself."""
        self._listeners: dict[object, Callable[[bool], object]] = {}

    def id(self) -> str:
        return self._id

    def is_stopped(self) -> bool:
        return self._stopped

    def is_killed(self) -> bool:
        return self._killed

    def stop_generating(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._notify(killed=False)

    def kill(self) -> None:
        if not self._killed:
            self._stopped = self._killed = True
            self._notify(killed=True)

    def stop_for_caller(self, *, kill: bool) -> None:
        """Pass on what the caller did to its own context."""
        self.stopped_by_caller = True
        if kill:
            self.kill()
        else:
            self.stop_generating()

    def lose_caller(self) -> None:
        """The connection to the caller was lost, which need not mean that nobody wants the answer."""
        if self.when_caller_lost is None:
            self.stop_for_caller(kill=True)
        else:
            self.when_caller_lost(self)

    def notify_first_token(self) -> None:
        """Kept for programs that call it: the first token is seen where it arrives."""

    def on_stop(self, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Call `listener(killed)` when this context is stopped or killed, at once if it already is.

        Returns a function that removes the listener.
        """
        if self._stopped:
            listener(self._killed)
        key = object()
        self._listeners[key] = listener

        def forget() -> None:
            self._listeners.pop(key, None)

        return forget

    def _notify(self, *, killed: bool) -> None:
        for listener in tuple(self._listeners.values()):
            listener(killed)

    async def async_killed_or_stopped(self) -> bool:
        if not self._stopped:
            stopped = asyncio.Event()
            forget = self.on_stop(lambda _: stopped.set())
            try:
                await stopped.wait()
            finally:
                forget()
        return True

    def detached(self, id: str | None = None) -> Context:
        """A context with the same metadata and trace that is stopped and killed separately."""
        context = Context(id, dict(self.metadata), traceparent=self.traceparent)
        context.tenant, context.session = self.tenant, self.session
        return context

    def renamed(self, id: str) -> Context:
        """The same with another id, before anybody listens to it."""
        context = Context(id, self.metadata, traceparent=self.traceparent)
        context.tenant, context.session = self.tenant, self.session
        return context

    def received(self) -> Context:
        """The context of the same request at a worker; what the caller does here reaches it through the plane only."""
        return Context(self._id, dict(self.metadata), traceparent=self.traceparent)

    @property
    def trace_id(self) -> str | None:
        found = _TRACEPARENT.fullmatch(self.traceparent or "")
        return found[1] if found else None

    @property
    def parent_span_id(self) -> str | None:
        found = _TRACEPARENT.fullmatch(self.traceparent or "")
        return found[2] if found else None

    @property
    def span_id(self) -> str | None:
        """The span of this hop, created on first use if the request is traced."""
        if self._span_id is None and self.trace_id:
            self._span_id = secrets.token_hex(8)
        return self._span_id

    def trace_headers(self) -> dict[str, str]:
        return {"traceparent": self.traceparent} if self.traceparent else {}
