"""Bodies that are still arriving: their memory is bounded, all connections together."""

from __future__ import annotations

from aiohttp import StreamReader, web

from dynamo.protocols.errors import ResourceExhausted


class ArrivingBodies:
    """Reads bodies. Where they exceed `budget` bytes together, the largest is refused: 0 is no limit."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._sizes: dict[StreamReader, int] = {}
        self._total = 0

    async def read(self, content: StreamReader, limit: int) -> bytearray:
        """The whole body, of at most `limit` bytes."""
        body = bytearray()
        try:
            while chunk := await content.readany():
                body += chunk
                if len(body) > limit:
                    raise web.HTTPRequestEntityTooLarge(limit, len(body))
                self._count(content, len(chunk))
        except BaseException:
            # The error keeps this frame alive for as long as the connection has it.
            body.clear()
            raise
        finally:
            self._forget(content)
        return body

    def _count(self, content: StreamReader, more: int) -> None:
        self._sizes[content] = self._sizes.get(content, 0) + more
        self._total += more
        if not self._budget or self._total <= self._budget:
            return
        largest = max(self._sizes, key=self._sizes.__getitem__)
        self._forget(largest)
        error = ResourceExhausted(
            f"Request bodies of {self._budget >> 20} MB are arriving, which is the limit. Please retry shortly."
        )
        if largest is content:
            raise error
        largest.set_exception(error)

    def _forget(self, content: StreamReader) -> None:
        self._total -= self._sizes.pop(content, 0)
