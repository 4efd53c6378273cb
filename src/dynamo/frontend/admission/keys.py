"""API keys, and the file of them: each with a name, limits, a weight, and whether it is an administrator's."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dynamo.api.headers import Headers
from dynamo.frontend.admission.limits import KeyLimits
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import DynamoException

Limit = Annotated[float, Meta(ge=0, lt=1e12)]
ANYBODY = "-"
"""The one owner of a server without keys."""


class Unauthorized(DynamoException):
    kind = "invalid_api_key"
    status = 401


class KnownKey(Struct, frozen=True, kw_only=True):
    """What the server knows of a key: its digest and its rights, not the key itself."""

    digest: bytes
    admin: bool = False
    weight: float = 1.0
    limits: KeyLimits = KeyLimits()

    @property
    def owner(self) -> str:
        return self.digest.hex()[:32]

    def tenant(self, keys: int, share_kv_cache: bool) -> Tenant:
        salt = "" if share_kv_cache else self.owner
        return Tenant(self.owner, weight=self.weight, keys=keys, cache_salt=salt)


class ApiKeys:
    """Without any key all requests are accepted; a server that has only keys of administrators accepts all too."""

    def __init__(self, keys: Iterable[str | KnownKey]) -> None:
        # Digests have equal lengths, so the time of a comparison does not reveal even the length of a key.
        known = [key if isinstance(key, KnownKey) else KnownKey(digest=digest(key)) for key in keys]
        self._keys = {key.digest: key for key in known}
        self.closed = any(not key.admin for key in known)
        """Requests need a key."""
        self.has_admins = any(key.admin for key in known)

    def check(self, headers: Headers) -> str:
        """The owner of the key sent as `Authorization: Bearer KEY` or `x-api-key: KEY`; raises Unauthorized."""
        return self.find(headers).owner if self.closed else ANYBODY

    def find(self, headers: Headers) -> KnownKey:
        """The key that was sent; raises Unauthorized if it is not one of ours."""
        sent = _sent(headers)
        if sent is None:
            raise Unauthorized("No API key was sent. Send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.")
        sent_digest, found = digest(sent), None
        for each in self._keys:
            if hmac.compare_digest(each, sent_digest):
                found = self._keys[each]
        if found is None:
            raise Unauthorized("The API key is not one of this server's.")
        return found

    def is_known(self, headers: Headers) -> bool:
        try:
            self.find(headers)
        except Unauthorized:
            return False
        return True

    @property
    def owners(self) -> list[str]:
        """All that `check` can return."""
        return [key.owner for key in self._keys.values()] if self.closed else [ANYBODY]

    def __iter__(self) -> Iterator[KnownKey]:
        return iter(self._keys.values())


def _sent(headers: Headers) -> str | None:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class KeyEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit that is left out is the server's default for all keys; 0 is no limit."""

    key: Annotated[str, Meta(min_length=1, pattern=r"^[!-~]+$")]
    admin: bool = False
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    """Its share where requests wait, relative to other keys."""
    requests_per_second: Limit | None = None
    tokens_per_second: Limit | None = None
    concurrent: Annotated[int, Meta(ge=0)] | None = None


def read_keys(path: str) -> dict[str, KeyEntry]:
    """The entries by name; a ValueError names the file and the entry that is wrong, never a key."""
    try:
        entries = tomllib.loads(Path(path).expanduser().read_text())
    except OSError as error:
        raise ValueError(f"--api-keys-file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The parser's message may quote the file.
        where = str(error).rpartition("(")[2].rstrip(")") if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        raise ValueError(f"--api-keys-file {path} is not TOML ({where})") from None
    found: dict[str, KeyEntry] = {}
    for name, entry in entries.items():
        try:
            found[name] = msgspec.convert(entry, KeyEntry)
        except msgspec.ValidationError as error:
            raise ValueError(f"--api-keys-file {path}, [{name}]: {error}") from None
    keys = [entry.key for entry in found.values()]
    if len(set(keys)) < len(keys):
        raise ValueError(f"--api-keys-file {path}: two entries have the same key")
    return found
