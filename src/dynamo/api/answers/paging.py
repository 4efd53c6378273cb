"""Lists in pages, as OpenAI's API has them: `limit`, `order`, and `after`, the id of the last one seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from dynamo.protocols.answers import Page
from dynamo.protocols.errors import InvalidRequest


def page(request: web.Request, ids: Sequence[str], values: Sequence[Any], *, limit: int = 20, most: int = 100) -> Page:
    """The page that the request's query asks for; `ids` and `values` come oldest first."""
    query = request.query
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest.bad_value("order", f"{order[:64]!r} is not one of 'asc', 'desc'")
    if "limit" in query:
        text = query["limit"]
        if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
            raise InvalidRequest.bad_value("limit", f"must be a whole number from 1 to {most}")
        limit = int(text)
    listed = list(zip(ids, values, strict=True))
    if order == "desc":
        listed.reverse()
    if after := query.get("after"):
        start = next((index for index, (id, _) in enumerate(listed, start=1) if id == after), None)
        if start is None:
            raise InvalidRequest.bad_value("after", f"there is no {after[:128]!r} in this list")
        listed = listed[start:]
    shown = listed[:limit]
    return Page(
        data=[value for _, value in shown],
        first_id=shown[0][0] if shown else None,
        last_id=shown[-1][0] if shown else None,
        has_more=len(listed) > limit,
    )
