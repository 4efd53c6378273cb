"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from aiohttp import web

from dynamo.frontend.headers import Headers
from dynamo.protocols.errors import DynamoException

OWNER = web.RequestKey("owner", str)
"""Where a request keeps the owner of its key."""
ANYBODY = "-"
"""The one owner of a server without keys."""


class Unauthorized(DynamoException):
    kind = "invalid_api_key"
    status = 401


class ApiKeys:
    """Without any key all requests are accepted."""

    def __init__(self, keys: Iterable[str]) -> None:
        # Digests have equal lengths, so the time of a comparison does not reveal even the length of a key.
        self._digests = [_digest(key) for key in keys]

    def check(self, headers: Headers) -> str:
        """The owner of the key sent as `Authorization: Bearer KEY` or `x-api-key: KEY`; raises Unauthorized."""
        if not self._digests:
            return ANYBODY
        sent = _sent(headers)
        if sent is None:
            raise Unauthorized("No API key was sent. Send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.")
        digest, known = _digest(sent), False
        for each in self._digests:
            known |= hmac.compare_digest(each, digest)
        if not known:
            raise Unauthorized("The API key is not one of this server's.")
        return _owner(digest)

    @property
    def owners(self) -> list[str]:
        """All that `check` can return."""
        return [_owner(digest) for digest in self._digests] or [ANYBODY]


def _sent(headers: Headers) -> str | None:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def _owner(digest: bytes) -> str:
    return digest.hex()[:32]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
