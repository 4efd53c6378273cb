"""The file of API keys: each with a name, limits, a weight, and whether it is an administrator's."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

Limit = Annotated[float, Meta(ge=0, lt=1e12)]


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
