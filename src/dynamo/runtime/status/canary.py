"""Tries an endpoint from which nothing good has come for a while, to know whether it still would answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec

from dynamo.protocols.errors import DynamoException, InvalidArgument
from dynamo.runtime.context import Context
from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import EndpointCounts
from dynamo.runtime.stream import Handler

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
        """Raises InvalidArgument where `payload` is not a request of this endpoint."""
        self._name = name
        self._handler = handler
        self._request_type = request_type
        self._payload = payload
        self._counts = counts
        self._config = config
        self._request()

    async def run(self, judged: Callable[[bool], None]) -> None:
        """Tells `judged` what it finds, at first at once, then after each time nothing good was seen for a while."""
        was = None
        while True:
            ready = await self._answers()
            if ready is not was:
                word = "answers" if ready else "does not answer"
                log.log(logging.INFO if ready else logging.WARNING, "endpoint %s %s", self._name, word)
            judged(ready)
            was = await self._silence(judged) or ready

    async def _silence(self, judged: Callable[[bool], None]) -> bool:
        """Wait for a pause in which nothing good was seen; returns whether anything was before it."""
        seen, good = self._seen(), False
        while True:
            await asyncio.sleep(self._config.idle)
            before, seen = seen, self._seen()
            if seen == before:
                return good
            good = True
            judged(True)

    def _seen(self) -> tuple[int, float]:
        """Changes with every good answer, and while one is under way."""
        return self._counts.good, self._counts.response_bytes.value

    async def _answers(self) -> bool:
        context, outlet = Context(), _Outlet()
        try:
            async with asyncio.timeout(self._config.patience):
                self._handler(self._request(), context, outlet)
                return await outlet.first
        except TimeoutError:
            return False
        except Exception as error:
            log.debug("the check of endpoint %s failed", self._name, exc_info=error)
            return False
        finally:
            context.kill()

    def _request(self) -> Any:
        """Each time a new one: handlers may change what they are given."""
        if self._request_type is Any:
            return deepcopy(self._payload)
        try:
            return msgspec.convert(self._payload, self._request_type)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"health_check_payload is no request of this endpoint: {error}") from None


class _Outlet:
    """Hears whether the first of an answer is one."""

    columnar = True

    def __init__(self) -> None:
        self.first: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def tokens(self, ids: list[int]) -> None:
        self._heard(good=True)

    def item(self, value: Any) -> None:
        self._heard(good=not _tells_error(value))

    def end(self) -> None:
        self._heard(good=False)

    def fail(self, error: DynamoException) -> None:
        self._heard(good=False)

    def _heard(self, *, good: bool) -> None:
        if not self.first.done():
            self.first.set_result(good)

    async def writable(self) -> None: ...


def _tells_error(value: Any) -> bool:
    """An answer may be well-formed and yet say that something failed."""
    told = (
        value if isinstance(value, dict) else {name: getattr(value, name, None) for name in ("event", "finish_reason")}
    )
    return told.get("event") == "error" or str(told.get("finish_reason") or "").startswith("error")
