"""/v1/files: upload, list, show, download and delete. /v1/batches: create, list, show and cancel."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from dynamo.api.answers.http import json_response, page
from dynamo.api.host import Host, OwnedState
from dynamo.api.route import HttpCall
from dynamo.protocols.errors import HttpError, InvalidRequest, NotFound
from dynamo.protocols.files import CreateBatchRequest, DeletedFile, FileObject
from dynamo.serving.store.files import MOST, too_large

T = TypeVar("T")

CHUNK = 1 << 16
LINES = 256
"""The lines of a form, around the contents of its parts. A part has about four."""
LINE_BYTES = 1 << 15
"""In all these lines."""
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")


class FormStream:
    """A request's body as the reader of its form sees it: what is around the contents of its parts is bounded."""

    def __init__(self, content: StreamReader, limit: int) -> None:
        """`limit` is of a file; the other parts have some bytes more."""
        self._content = content
        self._lines = LINES
        self._line_bytes = LINE_BYTES
        self._limit = limit
        self._left = limit + LINE_BYTES
        self.at_eof = content.at_eof

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        line = await self._content.readline(max_line_length=min(max_line_length or LINE_BYTES, LINE_BYTES))
        self._lines -= 1
        self._line_bytes -= len(line)
        if self._lines < 0 or self._line_bytes < 0:
            raise InvalidRequest("The form has too many parts, or too much around them.", code="invalid_multipart")
        return line

    async def read(self, size: int) -> bytes:
        # What has arrived is read without a pause: others have their turn here.
        await asyncio.sleep(0)
        chunk = await self._content.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise too_large(self._limit)
        return chunk

    def unread_data(self, data: bytes) -> None:
        self._left += len(data)
        with warnings.catch_warnings():
            # The reader of forms has no other way to give back what follows a part.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._content.unread_data(data)


async def create_file(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    request = call.request
    if request.content_type != "multipart/form-data":
        raise HttpError(415, f"Content-Type must be multipart/form-data, not {request.content_type}")
    if "Content-Encoding" in request.headers:
        raise HttpError(415, "An uploaded file must not have a Content-Encoding")
    state = host.state.of(call.owner)
    if (request.content_length or 0) > state.files.size + 2 * LINE_BYTES:
        raise too_large(state.files.size)
    try:
        form = MultipartReader(request.headers, cast(StreamReader, FormStream(request.content, state.files.size)))
        return json_response(await _upload(state, form))
    except (ValueError, AssertionError, LookupError, RuntimeError, HttpProcessingError):
        raise InvalidRequest("The body is not valid multipart/form-data.", code="invalid_multipart") from None


async def list_files(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    files = await host.state.of(call.owner).files.all()
    if purpose := call.request.query.get("purpose"):
        files = [file for file in files if file.purpose == purpose]
    return json_response(page(call.request, [file.id for file in files], files, limit=MOST, most=MOST))


async def show_file(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response(await host.state.of(call.owner).files.get(call.request.match_info["id"]))


async def delete_file(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    id = call.request.match_info["id"]
    await host.state.of(call.owner).files.delete(id)
    return json_response(DeletedFile(id=id))


async def file_content(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    file = await host.state.of(call.owner).files.get(call.request.match_info["id"])
    path = host.state.of(call.owner).files.path(file.id)
    if not await asyncio.to_thread(path.exists):
        raise NotFound(f"No such File object: {file.id}", "id")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})


async def create_batch(host: Host, call: HttpCall[CreateBatchRequest]) -> web.StreamResponse:
    return json_response(await host.state.of(call.owner).batches.create(call.body))


async def list_batches(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    batches = await host.state.of(call.owner).batches.all()
    return json_response(page(call.request, [batch.id for batch in batches], batches))


async def show_batch(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response(await host.state.of(call.owner).batches.get(call.request.match_info["id"]))


async def cancel_batch(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response(await host.state.of(call.owner).batches.cancel(call.request.match_info["id"]))


async def _upload(state: OwnedState, form: MultipartReader) -> FileObject:
    """The fields may come in any order."""
    purpose, id, filename = "", "", ""
    files, timeout = state.files, state.body_timeout
    try:
        while (part := await _within(timeout, form.next())) is not None:
            if not isinstance(part, BodyPartReader):
                raise InvalidRequest("The body has nested parts.", code="invalid_multipart")
            if part.name == "purpose":
                purpose = (await _within(timeout, part.read_chunk(256))).decode(errors="replace")
            elif part.name == "file" and not id:
                id, filename = await files.write(_chunks(part, timeout)), (part.filename or "upload")[:256]
        for name, given in (("file", id), ("purpose", purpose)):
            if not given:
                raise InvalidRequest.missing(name)
        if purpose not in PURPOSES:
            known = ", ".join(f"'{each}'" for each in PURPOSES)
            raise InvalidRequest.bad_value("purpose", f"{purpose[:64]!r} is not one of {known}")
    except BaseException:
        if id:
            files.discard(id)
        raise
    return await files.register(id, filename, purpose)


async def _chunks(part: BodyPartReader, timeout: float) -> AsyncIterator[bytes]:
    while chunk := await _within(timeout, part.read_chunk(CHUNK)):
        yield chunk


async def _within(timeout: float, coming: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(timeout or None):
            return await coming
    except TimeoutError:
        raise HttpError(408, f"Nothing more of the request's body came within {timeout:g} s") from None
