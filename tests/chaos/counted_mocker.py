"""`python -m dynamo.mocker` that notes every token it computes: `counted_mocker.py FILE FLAG…`.

A line is `time pid request place count`: the place of the first of `count` tokens within the answer, so a token that
was computed twice has the same request and place in two lines. Lines are written at once, so a kill loses none.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from dynamo.engines.base import Engine
from dynamo.mocker.__main__ import main
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import Context
from dynamo.runtime.stream import Handler, Outlet
from dynamo.worker import serve


class CountedOutlet:
    """Notes what passes it."""

    def __init__(self, outlet: Outlet, file: int, request_id: str, place: int) -> None:
        self.columnar = outlet.columnar
        self._outlet = outlet
        self._file = file
        self._request_id = request_id
        self._place = place

    def tokens(self, ids: list[int]) -> None:
        self._note(len(ids))
        self._outlet.tokens(ids)

    def item(self, value: Any) -> None:
        if isinstance(value, EngineOutput) and value.token_ids:
            self._note(len(value.token_ids))
        self._outlet.item(value)

    def end(self) -> None:
        self._outlet.end()

    def fail(self, error: DynamoException) -> None:
        self._outlet.fail(error)

    async def writable(self) -> None:
        await self._outlet.writable()

    def _note(self, count: int) -> None:
        line = f"{time.monotonic():.6f} {os.getpid()} {self._request_id} {self._place} {count}\n"
        os.write(self._file, line.encode())
        self._place += count


def counting(file: int) -> None:
    """Every engine that is served from now on is counted."""
    original = serve.engine_handler

    def engine_handler(engine: Engine) -> Handler:
        handle = original(engine)

        def counted(request: Any, context: Context, outlet: Outlet) -> None:
            place = request.resumed_tokens if isinstance(request, PreprocessedRequest) else 0
            handle(request, context, CountedOutlet(outlet, file, context.id(), place))

        return counted

    serve.engine_handler = engine_handler


if __name__ == "__main__":
    counting(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    main(sys.argv[2:])
