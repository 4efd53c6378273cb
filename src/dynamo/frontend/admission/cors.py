"""Cross-origin requests: which web pages may read our answers."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from aiohttp import web

from dynamo.api.headers import Headers

MAX_AGE = "600"
EXPOSED = ", ".join(
    (
        "x-request-id, request-id, retry-after, retry-after-ms, x-dynamo-warning",
        *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    )
)


class Cors:
    """`*` allows every page. Credentials are never allowed, so browsers send none."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)
        self.allows_all = "*" in self._origins

    def allows(self, origin: str) -> bool:
        """Whether the operator named this page; `*` names none in particular."""
        return origin in self._origins

    def add_headers(self, sent: Headers, answer: MutableMapping[str, str]) -> None:
        """Add to the headers of the answer to a request with the headers `sent`."""
        origin = sent.get("Origin")
        if self.allows_all:
            origin = "*"
        else:
            answer["Vary"] = f"{answer['Vary']}, Origin" if "Vary" in answer else "Origin"
            if origin not in self._origins:
                return
        assert origin is not None
        answer["Access-Control-Allow-Origin"] = origin
        answer["Access-Control-Expose-Headers"] = EXPOSED

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser's preflight request; None for any other."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
            "Access-Control-Max-Age": MAX_AGE,
        }
        return web.Response(status=204, headers=headers)
