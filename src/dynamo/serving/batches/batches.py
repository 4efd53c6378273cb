"""Batches: the requests of a file, answered in the background and journalled, so that a killed server resumes them.

A batch is run by the process that holds the lock of its journal. Any process may be asked for its state or to cancel
it: that goes through the records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from dynamo.model import CLIENT
from dynamo.process.backoff import Backoff
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import (
    CannotStore,
    DynamoException,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    ResourceExhausted,
    Unavailable,
    from_exception,
)
from dynamo.protocols.files import (
    BatchEndpoint,
    BatchError,
    BatchErrors,
    BatchObject,
    CreateBatchRequest,
    RequestCounts,
)
from dynamo.runtime import Context
from dynamo.serving.batches.input_file import BatchProgress, check_file, now
from dynamo.serving.batches.journal import Journal, JournalBusy, JournalHeader, JournalUnwritable
from dynamo.serving.batches.line import LineEndpoint, LineLimits, read_line
from dynamo.serving.models import Models
from dynamo.serving.store.files import Files, new_id
from dynamo.serving.store.records import Records

log = logging.getLogger(__name__)

KIND = "batch"
PURPOSE = "batch"
WAIT_FOR_MODEL = 60.0
"""How long a batch waits for a model that is not served."""
BUSY_PAUSES = (1.0, 30.0)
"""The first and the longest pause, in seconds, between attempts while all workers are busy."""
BUSY_ATTEMPTS = 6
UNWRITABLE_PAUSE = 5.0
"""Between attempts while the disk is full."""
LONGEST_PAUSE = 1.0
"""Between attempts while the key is over a limit: a batch may be cancelled meanwhile."""
WINDOWS = {"24h": 24 * 60 * 60}
"""The seconds of each `completion_window`."""

ErrorBody = Callable[[DynamoException, str], tuple[int, Any]]
"""The status and body that an HTTP client would get for an error; given the request id."""

Admit = Callable[[int], float | Callable[[int], None]]
"""Given the bytes of a request: the seconds to wait before it is asked for again, or, if the request may run now, a
function to call with the tokens that it used."""

_batch = msgspec.json.Decoder(BatchObject)


class Batches:
    def __init__(
        self,
        records: Records,
        files: Files,
        models: Models,
        endpoints: Mapping[str, LineEndpoint],
        *,
        concurrency: int,
        error_body: ErrorBody,
        is_stopping: Callable[[], bool],
        ignore_unknown: bool = False,
        limits: LineLimits | None = None,
        admit: Admit = lambda size: lambda used: None,
        tenant: Tenant | None = None,
    ) -> None:
        """`tenant` is whose turn the lines take where requests wait."""
        self.asking = 0
        """Lines that models are answering."""
        self._limits = limits or LineLimits()
        self._admit = admit
        self._tenant = tenant
        self._turns = structs.replace(tenant or Tenant(""), background=True)
        self._records = records
        self._files = files
        self._models = models
        self._endpoints = endpoints
        self._concurrency = concurrency
        self._error_body = error_body
        self._is_stopping = is_stopping
        self._ignore_unknown = ignore_unknown
        self._absent: set[str] = set()
        """Models for which no worker came within the wait: further requests to them fail at once."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Resume the batches that no process runs."""
        for batch in await self.all():
            if not batch.has_ended:
                self._start(batch.id)

    async def create(self, request: CreateBatchRequest) -> BatchObject:
        file = await self._files.get(request.input_file_id)
        if file.purpose != PURPOSE:
            why = f"the file's purpose is {file.purpose!r}; upload it with purpose 'batch'"
            raise InvalidRequest.bad_value("input_file_id", why)
        id = new_id("batch_")
        # The batch gets its own hard link, because the file may be deleted while the batch runs.
        try:
            os.link(self._files.path(file.id), self._input(id))
        except FileNotFoundError:
            raise NotFound(f"No such File object: {file.id}", "input_file_id") from None
        except OSError as error:
            raise CannotStore(f"The server cannot write to its disk: {error.strerror}.") from error
        created = now()
        made = BatchObject(
            id=id,
            endpoint=request.endpoint,
            input_file_id=file.id,
            completion_window=request.completion_window,
            status="validating",
            created_at=created,
            expires_at=created + WINDOWS[request.completion_window],
            request_counts=RequestCounts(),
            metadata=request.metadata,
        )
        try:
            await self._records.put(KIND, id, msgspec.json.encode(made))
        except CannotStore:
            self._input(id).unlink(missing_ok=True)
            raise
        self._start(id)
        return made

    async def get(self, id: str) -> BatchObject:
        body = await self._records.get(KIND, id)
        if body is None:
            raise _not_found(id)
        return _batch.decode(body)

    async def all(self) -> list[BatchObject]:
        """Oldest first."""
        return [_batch.decode(body) for body in await self._records.all(KIND)]

    async def cancel(self, id: str) -> BatchObject:
        def change(batch: BatchObject) -> BatchObject:
            if batch.has_ended:
                raise InvalidRequest(f"Cannot cancel a batch with status '{batch.status}'.")
            if batch.status == "cancelling":
                return batch
            return structs.replace(batch, status="cancelling", cancelling_at=now())

        batch = await self._change(id, change)
        # The process that ran it may be gone.
        self._start(id)
        return batch

    async def close(self) -> None:
        """Stop all; a later start resumes them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, id: str) -> None:
        if id not in self._tasks and not self._is_stopping():
            task = asyncio.create_task(self._run(id))
            self._tasks[id] = task
            task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _run(self, id: str) -> None:
        CLIENT.set((self._tenant, KIND))
        waited = False
        while True:
            try:
                await self._run_once(id)
                return
            except (JournalUnwritable, CannotStore) as error:
                if not waited:
                    log.error("batch %s waits until it can be written: %s", id, error)
                waited = True
                await asyncio.sleep(UNWRITABLE_PAUSE)

    async def _run_once(self, id: str) -> None:
        """Raises JournalUnwritable or CannotStore when the disk is full; what is in the journal is not asked again."""
        journal = Journal(self._files.folder("batches") / id)
        try:
            batch = await self.get(id)
            header = JournalHeader(input=batch.input_file_id, checksum=id, model=batch.endpoint)
            await asyncio.to_thread(journal.open, header)
            await self._run_locked(id, journal)
        except JournalBusy:
            return  # another process runs it
        except NotFound:
            journal.drop()
        except Exception as error:
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            if isinstance(cause, JournalUnwritable | CannotStore):
                raise cause from error
            log.exception("batch %s failed", id)
            with contextlib.suppress(NotFound):
                await self._fail(id, [BatchError(code="server_error", message=str(cause) or type(cause).__name__)])
            journal.drop()
            self._input(id).unlink(missing_ok=True)
        finally:
            journal.close()

    async def _run_locked(self, id: str, journal: Journal) -> None:
        batch = await self.get(id)  # it may have ended before the lock was ours
        if batch.status == "validating":
            total, errors = await asyncio.to_thread(check_file, self._input(id), batch.endpoint, self._limits)
            if errors:
                await self._fail(id, errors)
            else:
                batch = await self._change(id, lambda batch: _begun(batch, total))
        if batch.status in ("in_progress", "cancelling"):
            is_expired = await self._answer_all(batch, journal)
            if self._is_stopping():
                return
            batch = await self.get(id)
            is_partial = len(journal) < batch.request_counts.total
            if is_partial and batch.status == "in_progress" and is_expired:
                await asyncio.to_thread(self._expire_rest, batch, journal)
                await self._change(id, _expired)
        if not (await self.get(id)).has_ended:
            await self._finish(id, journal)
        journal.drop()
        self._input(id).unlink(missing_ok=True)

    async def _answer_all(self, batch: BatchObject, journal: Journal) -> bool:
        """Returns whether the batch has expired."""
        with self._input(batch.id).open("rb") as lines:
            run = BatchProgress(batch, journal, lines)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, max(1, batch.request_counts.total))):
                    group.create_task(self._answer_some(run))
            return run.is_expired()

    async def _answer_some(self, run: BatchProgress) -> None:
        for number, line in run.waiting:
            end: float | Callable[[int], None] = 0.0
            while not callable(end):
                await asyncio.sleep(min(end, LONGEST_PAUSE))
                if run.is_expired() or (await self.get(run.batch.id)).status == "cancelling":
                    return
                end = self._admit(len(line))
            used = 0
            try:
                record, failed = await self._outcome(run.batch.endpoint, line)
                used = _tokens_used(record)
            finally:
                end(used)
            if failed and self._is_stopping():
                return  # failed by our own shutdown: the resumed batch asks again
            run.journal.add(number, msgspec.json.encode(record), failed=failed)
            if run.is_count_due():
                await self._change(run.batch.id, run.counted)

    def _expire_rest(self, batch: BatchObject, journal: Journal) -> None:
        """Journal the requests that were not begun in time as failed."""
        error = {"code": "batch_expired", "message": "This request was not begun before the batch expired."}
        with self._input(batch.id).open("rb") as lines:
            for number, line in BatchProgress(batch, journal, lines).waiting:
                custom_id = read_line(line, batch.endpoint).custom_id
                record = {"id": _request_id(), "custom_id": custom_id, "response": None, "error": error}
                journal.add(number, msgspec.json.encode(record), failed=True)

    async def _outcome(self, endpoint: BatchEndpoint, line: bytes) -> tuple[dict[str, Any], bool]:
        id = _request_id()
        read, answering = read_line(line, endpoint), self._endpoints[endpoint]
        try:
            request = read.request(answering, [] if self._ignore_unknown else None)
            status, body = 200, await self._ask(answering, request)
        except Exception as error:
            known = from_exception(error)
            if known is not error:
                log.error("a request of a batch failed [%s]", id, exc_info=error)
            status, body = self._error_body(known, id)
        response = {"status_code": status, "request_id": id, "body": body}
        return {"id": id, "custom_id": read.custom_id, "response": response, "error": None}, status != 200

    async def _ask(self, endpoint: LineEndpoint, request: Any) -> dict[str, Any]:
        pauses = Backoff(*BUSY_PAUSES)
        while True:
            try:
                context = Context()
                context.tenant = self._turns
                model = self._models.get(request.model)
                self.asking += 1
                try:
                    return await endpoint.answer(model, request, context)
                finally:
                    self.asking -= 1
            except (Unavailable, ModelNotFound, ResourceExhausted) as error:
                if pauses.attempts == BUSY_ATTEMPTS or request.model in self._absent:
                    raise
                if not isinstance(error, ResourceExhausted) and not await self._joins(request.model):
                    raise
            await asyncio.sleep(pauses.pause())

    async def _joins(self, model: str) -> bool:
        """Wait for a worker that serves the model; False if none comes."""
        try:
            async with asyncio.timeout(WAIT_FOR_MODEL):
                await self._models.wait_for(model)
        except TimeoutError:
            self._absent.add(model)
        return model not in self._absent

    async def _finish(self, id: str, journal: Journal) -> None:
        """Can be repeated until the last step: the files have the same names each time."""
        batch = await self._change(id, _finalizing)
        counts = RequestCounts(
            total=batch.request_counts.total, completed=len(journal) - journal.failed, failed=journal.failed
        )
        output = errors = None
        if counts.completed:
            output = await self._write(
                journal, f"file-{id.removeprefix('batch_')}o", f"{id}_output.jsonl", failed=False
            )
        if counts.failed:
            errors = await self._write(journal, f"file-{id.removeprefix('batch_')}e", f"{id}_error.jsonl", failed=True)

        def end(batch: BatchObject) -> BatchObject:
            batch.output_file_id, batch.error_file_id, batch.request_counts = output, errors, counts
            if batch.cancelling_at is not None:
                batch.status, batch.cancelled_at = "cancelled", now()
            elif batch.expired_at is not None:
                batch.status = "expired"
            else:
                batch.status, batch.completed_at = "completed", now()
            return batch

        await self._change(id, end)

    async def _write(self, journal: Journal, file_id: str, name: str, *, failed: bool) -> str:
        await asyncio.to_thread(journal.write, self._files.path(file_id), failed=failed)
        await self._files.register(file_id, name, "batch_output")
        return file_id

    async def _fail(self, id: str, errors: list[BatchError]) -> BatchObject:
        return await self._change(
            id,
            lambda batch: structs.replace(batch, status="failed", failed_at=now(), errors=BatchErrors(data=errors)),
        )

    async def _change(self, id: str, change: Callable[[BatchObject], BatchObject]) -> BatchObject:
        body = await self._records.update(KIND, id, lambda old: msgspec.json.encode(change(_batch.decode(old))))
        if body is None:
            raise _not_found(id)
        return _batch.decode(body)

    def _input(self, id: str) -> Path:
        return self._files.folder("batches") / f"{id}.input"


def _tokens_used(record: dict[str, Any]) -> int:
    body = record["response"]["body"]
    usage = body.get("usage") if isinstance(body, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else 0


def _begun(batch: BatchObject, total: int) -> BatchObject:
    batch.request_counts.total = total
    if batch.status == "validating":
        batch.status, batch.in_progress_at = "in_progress", now()
    return batch


def _finalizing(batch: BatchObject) -> BatchObject:
    if batch.status == "in_progress":
        batch.status, batch.finalizing_at = "finalizing", now()
    return batch


def _expired(batch: BatchObject) -> BatchObject:
    batch.expired_at = now()
    return _finalizing(batch)


def _request_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


def _not_found(id: str) -> NotFound:
    return NotFound(f"No batch found with id '{id[:128]}'.")
