"""Responses with `background: true`: they go on when their client has left, and are fetched from the store."""

from __future__ import annotations

import asyncio

from dynamo.api.responses.event_log import EventLog
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.stored_responses import ResponseStore, Turn
from dynamo.api.responses.stream import ResponsesStream, ResponsesWriter
from dynamo.api.responses.unfinished import UnfinishedRequest
from dynamo.api.route import MeasuredRequest
from dynamo.protocols.errors import (
    Cancelled,
    DynamoException,
    InvalidRequest,
    ResourceExhausted,
    Unavailable,
    from_exception,
)
from dynamo.serving.conversation import Conversation

KEPT_LOGS = 32
"""Complete responses whose events can still be streamed, for each key."""
CHECK_SECONDS = 1.0
"""How often a run looks whether another process of this port has cancelled or deleted its response."""


class BackgroundRun:
    """One response; owns its conversation, which must have been prepared."""

    def __init__(
        self,
        request: ResponsesRequest,
        turn: Turn,
        conversation: Conversation,
        stream: ResponsesStream,
        record: MeasuredRequest | None = None,
        unfinished: UnfinishedRequest | None = None,
    ) -> None:
        """`unfinished`: what another process needs to go on with it, if there may be one. `record` measures the request
        of a client; none does where this process goes on with what another one began."""
        self.request = request
        self.unfinished = unfinished
        self.turn = turn
        self.response = stream.response
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the response can be fetched."""
        self.task: asyncio.Task[None] | None = None
        """Produces and stores the response, once it was started."""
        self.events = EventLog(keep=bool(request.stream))
        self._conversation = conversation
        self._stream = stream
        self._record = record
        self.ended: asyncio.Future[int] = record.go_on() if record else asyncio.get_running_loop().create_future()
        """Done with the status of the request once it has ended."""
        self.events.write(stream.start())
        self._writer = ResponsesWriter(
            stream, conversation.tokenizer, conversation.request.top_logprobs or 0, self.events, started=True
        )

    async def run(self) -> None:
        """Produce the response, unless that is cancelled."""
        try:
            await self._conversation.send([self._writer])
            await asyncio.shield(self.events.ended)
        except Exception as error:
            self.fail(from_exception(error))

    async def close(self) -> None:
        """End the request; a response that is not complete is cancelled."""
        if self.response.status == "in_progress":
            self._stream.cancel()
        self.events.end()
        await self._conversation.close()
        self.ended.set_result(self._status())

    def fail(self, error: DynamoException) -> None:
        if self._record:
            self._record.failed(error)
        self._writer.fail(error)

    @property
    def tokens(self) -> int:
        """How many prompt and answer have, once it has ended."""
        usage = self.response.usage
        return usage.total_tokens if usage else 0

    def _status(self) -> int:
        """The HTTP status of a request with the same outcome."""
        if error := self._writer.error:
            return error.status
        return Cancelled.status if self.response.status == "cancelled" else 200


class BackgroundResponses:
    """The background responses of one API key."""

    def __init__(self, store: ResponseStore, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._running: dict[str, BackgroundRun] = {}
        self._logs: dict[str, EventLog] = {}
        self._stopping = False

    def check(self, request: ResponsesRequest) -> None:
        """Raises InvalidRequest for a response that could not be fetched, ResourceExhausted if too many run."""
        if not request.store:
            why = "needs `store`" if self._store.enabled else "this server keeps no responses that could be fetched"
            raise InvalidRequest.unsupported("background", why)
        if not self._limit:
            raise InvalidRequest.unsupported("background", "--background-responses is 0")
        if len(self._running) >= self._limit:
            raise ResourceExhausted(f"{self._limit} responses run in the background already, which is the limit.")

    def start(self, run: BackgroundRun) -> None:
        id = run.response.id
        if run.request.stream:
            self._logs[id] = run.events
        self._running[id] = run
        run.task = asyncio.create_task(self._run(run))
        run.task.add_done_callback(lambda _: self._ended(id))

    def events(self, id: str) -> EventLog | None:
        """The events of a response, if they are kept in this process."""
        log = self._logs.get(id)
        return log if log and log.complete else None

    async def ended(self, id: str) -> None:
        """Wait until a response that runs in this process is complete and stored."""
        if (run := self._running.get(id)) and run.task:
            await asyncio.wait((run.task,))

    async def stop(self, id: str) -> None:
        """End a response that runs in this process; its record has been changed already."""
        if (run := self._running.get(id)) and run.task:
            await asyncio.wait((run.stored,))
            run.task.cancel()
            await self.ended(id)

    async def idle(self) -> None:
        while tasks := [run.task for run in self._running.values() if run.task]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End all responses that still run; they are stored as failed."""
        self._stopping = True
        for id in list(self._running):
            await self.stop(id)

    async def _run(self, run: BackgroundRun) -> None:
        if run.unfinished:
            await self._store.unfinished.add(run.unfinished)
        await self._store.save(run.request, run.turn, run.response)
        run.stored.set_result(None)
        producing = asyncio.create_task(run.run())
        try:
            while not (await asyncio.wait((producing,), timeout=CHECK_SECONDS))[0]:
                if await self._store.status(run.response.id) != "in_progress":
                    return
        finally:
            if not producing.done():
                if self._stopping:
                    run.fail(Unavailable("The server was stopped."))
                producing.cancel()
                await asyncio.wait((producing,))
            await run.close()
            if await self._store.status(run.response.id) == "in_progress":
                await self._store.save(run.request, run.turn, run.response)
            if run.unfinished:
                await self._store.unfinished.drop(run.response.id)

    def _ended(self, id: str) -> None:
        del self._running[id]
        finished = [id for id in self._logs if id not in self._running]
        for id in finished[: max(0, len(finished) - KEPT_LOGS)]:
            del self._logs[id]
