"""Files that say how to reach a cluster: read whole, within limits, with errors that name them."""

from __future__ import annotations

from pathlib import Path

from dynamo.protocols.errors import StartError

_MOST_BYTES = 4 << 20


class ClusterAccessError(StartError):
    """The message names the file or the variable, and what is wrong there, in one line whatever the file holds."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def read_bytes(source: Path | bytes, what: str) -> bytes:
    """`bytes` are what such a file would hold."""
    if isinstance(source, bytes):
        return source
    try:
        with source.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ClusterAccessError(f"{source}: the {what} cannot be read: {why}") from error
    if len(data) > _MOST_BYTES:
        raise ClusterAccessError(f"{source}: the {what} is larger than {_MOST_BYTES >> 20} MB")
    return data


def line(source: Path | bytes, what: str) -> str:
    try:
        text = read_bytes(source, what).decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        place = "the kubeconfig" if isinstance(source, bytes) else str(source)
        raise ClusterAccessError(f"{place}: the {what} is not one line of text")
    return text
