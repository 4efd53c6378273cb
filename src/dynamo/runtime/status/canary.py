"""Health checks: sends a test request to an endpoint that has not answered for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import msgspec

from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime.context import Context
from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import EndpointCounts
from dynamo.runtime.stream import FirstAnswer, Handler

log = logging.getLogger(__name__)


class Canary:
    def __init__(
        self,
        name: str,
        handler: Handler,
        request_type: Any,
        payload: Any,
        counts: EndpointCounts,
        config: StatusConfig,
    ) -> None:
        """Raises InvalidArgument if `payload` is not a valid request of this endpoint."""
        self._name = name
        self._handler = handler
        self._request_type = request_type
        self._payload = payload
        self._counts = counts
        self._config = config
        self._request()

    async def results(self) -> AsyncIterator[bool]:
        """Whether the endpoint is ready, whenever that is known: it is checked at once, then after idle periods."""
        was = None
        while True:
            ready = await self._answers()
            if ready is not was:
                word = "answers" if ready else "does not answer"
                log.log(logging.INFO if ready else logging.WARNING, "endpoint %s %s", self._name, word)
            yield ready
            was = ready
            seen = self._seen()
            while True:
                await asyncio.sleep(self._config.idle)
                before, seen = seen, self._seen()
                if seen == before:
                    break
                was = True
                yield True

    def _seen(self) -> tuple[int, float]:
        """Changes with every good answer, and while one is being sent."""
        return self._counts.good, self._counts.response_bytes.value

    async def _answers(self) -> bool:
        context, answer = Context(), FirstAnswer()
        try:
            async with asyncio.timeout(self._config.patience):
                self._handler(self._request(), context, answer)
                await answer.value
                return True
        except TimeoutError:
            return False
        except Exception as error:
            log.debug("the check of endpoint %s failed", self._name, exc_info=error)
            return False
        finally:
            context.kill()

    def _request(self) -> Any:
        """A new request each time: handlers may change the one they are given."""
        if self._request_type is Any:
            return deepcopy(self._payload)
        try:
            return msgspec.convert(self._payload, self._request_type)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"health_check_payload is not a valid request of this endpoint: {error}") from None
