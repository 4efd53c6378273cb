"""Chooses the server of a request as a frontend chooses a worker: by its tokens, the caches and the load."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct, field

from dynamo.api.epp.endpoints import Endpoints
from dynamo.api.epp.exchange import GatewayRequest
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import SMALL, BodyLimits, check_shape, in_turns
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import DynamoException, ResourceExhausted
from dynamo.protocols.long_strings import decode_in_steps
from dynamo.router.placement import Placement
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.metrics import Histogram
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel

log = logging.getLogger(__name__)

LIMITS = BodyLimits(500_000, 65_536)
_BOUNDS = [1e-4 * 2**step for step in range(15)]
_CHAT, _COMPLETION = BodyDecoder(ChatRequest), BodyDecoder(CompletionRequest)


class _ModelName(Struct):
    """A body of any of the APIs."""

    model: str = ""


class PickCounts(Struct):
    by_tokens: int = 0
    """Chosen by what their prompts have in the caches of the servers."""
    by_load: int = 0
    """Chosen by load alone: no body, no prompt, or a model that is unknown here."""
    refused: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(_BOUNDS))
    """From the whole request to the choice."""


class Pick:
    """See `Picked`."""

    def __init__(
        self,
        endpoints: Endpoints,
        endpoint: str,
        headers: dict[str, str],
        placement: Placement | None = None,
        instances: InstanceSet | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.headers = headers
        self._endpoints = endpoints
        self._placement = placement
        self._instances = instances
        self._released = False
        endpoints.in_flight[endpoint] += 1

    def first_output(self) -> None:
        if self._placement:
            self._placement.first_token()

    def answered(self, failed: bool) -> None:
        if self._placement and self._instances:
            if failed:
                self._instances.request_failed(self._placement.instance_id)
            else:
                self._instances.request_answered(self._placement.instance_id)

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self._endpoints.in_flight[self.endpoint] -= 1
        if not self._endpoints.in_flight[self.endpoint]:
            del self._endpoints.in_flight[self.endpoint]
        if self._placement:
            self._placement.release()


class EndpointPicker:
    """With `names_workers`, headers tell the server before several workers which of them it is."""

    def __init__(self, models: Models, endpoints: Endpoints, *, names_workers: bool) -> None:
        self._models = models
        self._endpoints = endpoints
        self._names_workers = names_workers
        self.counts = PickCounts()

    async def pick(self, request: GatewayRequest) -> Pick:
        began = perf_counter()
        try:
            pick = await self._pick(request)
        except DynamoException:
            self.counts.refused += 1
            raise
        self.counts.seconds.observe(perf_counter() - began)
        return pick

    async def _pick(self, request: GatewayRequest) -> Pick:
        model = self._model(request.body) if request.body else None
        if model is None:
            return self._by_load(request)
        assert request.body
        prompt, knows_tokens = await _prompt(model, request.path, request.body)
        if not knows_tokens and not self._names_workers:
            return self._by_load(request)
        instances = model.router.instances
        excluded = self._endpoints.excluded(instances, request.subset)
        try:
            placement = await model.router.place(prompt, request_id=request.id, avoid=excluded)
        except ResourceExhausted:
            raise
        except DynamoException:
            # No worker is known, or none of the rank that the client names: a server says so, or takes it.
            return self._by_load(request)
        instances.request_sent(placement.instance_id)
        address = self._endpoints.workers.get(placement.instance_id)
        if address is None:
            placement.release()
            return self._by_load(request)
        if knows_tokens:
            self.counts.by_tokens += 1
        else:
            self.counts.by_load += 1
        return Pick(self._endpoints, address, self._headers(model, placement), placement, instances)

    def _model(self, body: bytes | bytearray) -> ServedModel | None:
        """None: the servers answer what becomes of it."""
        try:
            return self._models.get(msgspec.json.decode(body, type=_ModelName).model)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DynamoException):
            return None

    def _by_load(self, request: GatewayRequest) -> Pick:
        endpoint = self._endpoints.least_loaded(request.subset)
        self.counts.by_load += 1
        return Pick(self._endpoints, endpoint, {})

    def _headers(self, model: ServedModel, placement: Placement) -> dict[str, str]:
        if not self._names_workers:
            return {}
        pool = model.handoffs.pool if model.handoffs else None
        headers = {
            "x-dynamo-worker-instance-id": str(placement.instance_id),
            "x-dynamo-routing-mode": "disaggregated" if pool and len(pool.instances) else "aggregated",
        }
        if placement.dp_rank is not None:
            headers["x-dynamo-dp-rank"] = str(placement.dp_rank)
        return headers


async def _prompt(model: ServedModel, path: str, body: bytes | bytearray) -> tuple[PreprocessedRequest | Any, bool]:
    """What the router chooses by: the prompt's tokens, or the body where they cannot be known.

    A request that is wrong goes to a server, whose answer says what is wrong with it.
    """
    preprocessor = model.preprocessor
    path = path.partition("?")[0]
    try:
        if preprocessor is None:
            raise _NoTokens
        spans = await in_turns(check_shape(body, LIMITS)) if len(body) > SMALL else []
        if path.endswith("/chat/completions"):
            chat = await in_turns(decode_in_steps(_CHAT, body, spans, [])) if spans else _CHAT.decode(body, [])
            return (await preprocessor.chat(chat)).request, True
        if path.endswith("/completions"):
            asked = (
                await in_turns(decode_in_steps(_COMPLETION, body, spans, [])) if spans else _COMPLETION.decode(body, [])
            )
            # All prompts of a request go to one server; the first stands for them.
            return (await preprocessor.completion(asked))[0].request, True
        raise _NoTokens
    except (DynamoException, _NoTokens) as error:
        log.debug("choosing by load: %s", error)
        return msgspec.json.decode(body), False


class _NoTokens(Exception):
    pass
