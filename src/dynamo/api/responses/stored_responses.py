"""Stored responses, and the history that a request refers to by ids."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from dynamo.api.responses.answers import ResponseObject
from dynamo.api.responses.items import find_item, keep_items, read_items
from dynamo.api.responses.request import InputItem, InputTokensRequest, ResponsesRequest
from dynamo.api.responses.stored_conversations import Conversations
from dynamo.api.responses.unfinished import UnfinishedRequests
from dynamo.protocols.errors import CannotStore, InvalidRequest, NotFound
from dynamo.serving.store.processes import LiveProcesses
from dynamo.serving.store.records import Records

log = logging.getLogger(__name__)

KIND = "response"
_ITEM_OF_RESPONSE = re.compile(r"[a-z]+_([0-9a-f]{32})_\w+")
_NOT_KEPT = "this server keeps no responses; send the whole conversation as `input`"
_ITEM_NOT_FOUND = (
    "Item with id '{id}' not found. Items are not persisted when `store` is set to false, and the oldest are dropped "
    "when the server's space is full. Send the item itself, or remove it from your input."
)

Request = ResponsesRequest | InputTokensRequest


class StoredResponse(Struct):
    """Complete in itself: it does not need the responses before it, which may be deleted."""

    response: Raw
    context: list[Raw]
    """The items that the model read: of the turns before, then of this request. Without instructions."""
    producer: str = ""
    """The process that produces the response, while it is in progress."""
    session: str = ""
    """The first response of the conversation, through all `previous_response_id`; empty for that one itself."""


class _StoredOutput(Struct):
    output: list[Raw]


class _State(Struct):
    status: str
    background: bool = False


class Turn(Struct):
    """A request's input with all that it refers to by ids."""

    history: list[Raw]
    input: str | list[InputItem]
    """The input of the request; references are replaced by the items they name."""
    session: str | None = None
    """The conversation that the request continues, by the id of its first response if it has none of its own."""

    def past(self) -> list[InputItem]:
        return read_items(self.history)


_stored = msgspec.json.Decoder(StoredResponse)
_output = msgspec.json.Decoder(_StoredOutput)
_state = msgspec.json.Decoder(_State)


def _cancelled(body: bytes) -> bytes:
    return _ended(body, status="cancelled")


def _abandoned(body: bytes) -> bytes:
    error = {"code": "server_error", "message": "The server ended before the response was complete."}
    return _ended(body, status="failed", error=error)


def _ended(body: bytes, **fields: Any) -> bytes:
    """The record of a response with these fields, unless the response has ended already."""
    stored = _stored.decode(body)
    response = msgspec.json.decode(stored.response)
    if response["status"] != "in_progress":
        return body
    return msgspec.json.encode(StoredResponse(Raw(msgspec.json.encode(response | fields)), stored.context))


class ResponseStore:
    def __init__(
        self, records: Records, conversations: Conversations, processes: LiveProcesses, *, enabled: bool
    ) -> None:
        self.enabled = enabled
        self.unfinished = UnfinishedRequests(records, processes)
        self._records = records
        self._conversations = conversations
        self._processes = processes

    async def turn(self, request: Request) -> Turn:
        """Raises InvalidRequest for ids that lead nowhere."""
        history: list[Raw] = []
        session = request.conversation_id
        if request.previous_response_id is not None:
            self._require("previous_response_id")
            if request.conversation is not None:
                raise InvalidRequest(
                    "Mutually exclusive parameters. Ensure you are only providing one of: 'previous_response_id' or "
                    "'conversation'.",
                    "previous_response_id",
                    "mutually_exclusive_parameters",
                )
            history, session = await self._history_through(request.previous_response_id)
        elif request.conversation is not None:
            self._require("conversation")
            history = await self._conversations.items(request.conversation_id or "")
        read = request.input
        if not isinstance(read, str) and read and any(item.is_reference for item in read):
            self._require("input")
            read = [await self._resolved(item, history) if item.is_reference else item for item in read]
        return Turn(history, [] if read is None else read, session)

    async def save(self, request: ResponsesRequest, turn: Turn, response: ResponseObject) -> None:
        """Keep the response and continue its conversation, as far as the request wants that and it did not fail.

        Of a background response every state is kept. A failure to store is logged: the answer itself is good.
        """
        wanted = request.store or request.conversation is not None
        complete = response.status in ("completed", "incomplete")
        if not self.enabled or not wanted or not (complete or request.background):
            return
        owner = response.id.removeprefix("resp_")
        said = keep_items(turn.input, owner)
        try:
            if request.store:
                producer = self._processes.own if response.status == "in_progress" else ""
                context, session = [*turn.history, *said], turn.session or ""
                body = StoredResponse(Raw(msgspec.json.encode(response)), context, producer, session)
                await self._records.put(KIND, response.id, msgspec.json.encode(body))
            if request.conversation_id is not None and complete:
                made = [Raw(msgspec.json.encode(item)) for item in response.output]
                await self._conversations.extend(request.conversation_id, [*said, *made])
        except CannotStore as error:
            log.error("response %s could not be stored: %s", response.id, error.message)
        except Exception:
            log.exception("response %s could not be stored", response.id)

    async def get(self, id: str) -> StoredResponse:
        stored = await self._find(id)
        if stored is None:
            raise NotFound(f"Response with id '{id[:128]}' not found.")
        return stored

    async def status(self, id: str) -> str | None:
        """The status of a stored response; None if the response was deleted or dropped."""
        stored = await self._find(id)
        return None if stored is None else _state.decode(stored.response).status

    async def cancel(self, id: str) -> StoredResponse:
        """Mark a background response that is not complete as cancelled, whichever process produces it.

        Raises InvalidRequest for a response that did not run in the background.
        """
        state = _state.decode((await self.get(id)).response)
        if not state.background:
            raise InvalidRequest("Cannot cancel a synchronous response.")
        if state.status == "in_progress":
            await self._records.update(KIND, id, _cancelled)
        return await self.get(id)

    async def delete(self, id: str) -> None:
        if not await self._records.delete(KIND, id):
            raise NotFound(f"Response with id '{id[:128]}' not found.")

    async def _find(self, id: str) -> StoredResponse | None:
        """A response whose process ended before it was complete is continued by another one, which finds its request.

        Without that it has failed, and is stored as such from now on.
        """
        body = await self._records.get(KIND, id)
        if body is None:
            return None
        stored = _stored.decode(body)
        if stored.producer and not self._processes.is_alive(stored.producer) and not await self.unfinished.holds(id):
            body = await self._records.update(KIND, id, _abandoned)
            return None if body is None else _stored.decode(body)
        return stored

    def _require(self, param: str) -> None:
        if not self.enabled:
            raise InvalidRequest.unsupported(param, _NOT_KEPT)

    async def _history_through(self, id: str) -> tuple[list[Raw], str]:
        """Everything up to and including the output of a response, and the first response of that conversation."""
        stored = await self._find(id)
        if stored is None:
            message = f"Previous response with id '{id[:128]}' not found."
            raise InvalidRequest(message, "previous_response_id", "previous_response_not_found")
        if _state.decode(stored.response).status == "in_progress":
            message = f"Previous response with id '{id[:128]}' is still in progress."
            raise InvalidRequest(message, "previous_response_id", "previous_response_in_progress")
        return [*stored.context, *_output.decode(stored.response).output], stored.session or id

    async def _resolved(self, reference: InputItem, history: Sequence[Raw]) -> InputItem:
        id = reference.id or ""
        item = find_item(history, id)
        if item is None and (owner := _ITEM_OF_RESPONSE.fullmatch(id)):
            stored = await self._find(f"resp_{owner[1]}")
            if stored is not None:
                item = find_item([*_output.decode(stored.response).output, *stored.context], id)
        if item is None:
            raise NotFound(_ITEM_NOT_FOUND.format(id=id[:128]), "input")
        return structs.replace(read_items([item])[0], id=id)
