"""Goes on with the background responses of processes that have ended, where their workers left them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dynamo.api.responses.background import BackgroundResponses, BackgroundRun
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.stored_responses import ResponseStore
from dynamo.api.responses.stream import ResponsesStream
from dynamo.api.responses.to_chat import responses_to_chat
from dynamo.api.responses.unfinished import MOST_PRODUCERS, UnfinishedRequest
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import Context
from dynamo.serving.batches.batches import Admit
from dynamo.serving.conversation import Conversation
from dynamo.serving.models import Models
from dynamo.serving.resumable import NamedRequest, ResumableStream
from dynamo.serving.served_model import ServedModel

log = logging.getLogger(__name__)

MODEL_SECONDS = 60.0
"""How long a response waits for its model to be served here; then it has failed."""


class Takeover:
    """For one API key, within the limits of that key."""

    def __init__(
        self,
        store: ResponseStore,
        background: BackgroundResponses,
        models: Models,
        admit: Admit,
        tenant: Tenant | None,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._store = store
        self._background = background
        self._models = models
        self._admit = admit
        self._tenant = tenant
        self._is_stopping = is_stopping
        self._decoder = BodyDecoder(ResponsesRequest)
        self._waiting: dict[str, float] = {}
        """Responses whose model is not served here, and since when."""

    async def round(self) -> bool:
        """Continue all that can be continued; returns whether some must wait."""
        abandoned = await self._store.unfinished.abandoned()
        self._waiting = {each.id: self._waiting.get(each.id, time.monotonic()) for each in abandoned}
        waits = [await self._try(each) for each in abandoned if not self._is_stopping()]
        return any(waits)

    async def _try(self, request: UnfinishedRequest) -> bool:
        """Returns whether it must wait."""
        body = self._decoder.decode(bytes(request.body), [])
        late = time.monotonic() - self._waiting[request.id] > MODEL_SECONDS
        if late or request.producers >= MOST_PRODUCERS or await self._store.status(request.id) != "in_progress":
            await self._store.unfinished.drop(request.id)
            return False
        try:
            model = self._models.get(body.model)
        except DynamoException:
            return True
        used = self._admit(len(request.body))
        if isinstance(used, float | int):
            return True
        if not await self._store.unfinished.take(request):
            used(0)
            return False
        log.info("continuing response %s, whose process has ended", request.id)
        try:
            run = await self._prepared(request, body, model)
        except DynamoException as error:
            log.error("response %s cannot be continued: %s", request.id, error)
            await self._store.unfinished.drop(request.id)
            used(0)
            return False
        run.ended.add_done_callback(lambda _: used(run.tokens))
        self._background.start(run)
        return False

    async def _prepared(self, request: UnfinishedRequest, body: ResponsesRequest, model: ServedModel) -> BackgroundRun:
        turn = await self._store.turn(body)
        body.input, body.store = turn.input, True
        chat = responses_to_chat(body, turn.past())
        validate_chat(chat)
        context = Context(request.stream.request_id)
        context.tenant = self._tenant
        asked = NamedRequest("", b"", request.created, request.stream.request_id)
        stream = ResumableStream(request.stream, asked, continues=True)
        conversation = Conversation(model, chat, context, stream=stream)
        await conversation.prepare()
        events = ResponsesStream(body, request.id, model.name, request.created)
        return BackgroundRun(body, turn, conversation, events, unfinished=request)
