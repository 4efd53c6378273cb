"""`nvext.annotations`: events that precede a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.pipeline.preprocess import Prepared
from dynamo.serving.request import ServedRequest


def annotation_events(served: ServedRequest[Any], prepared: Prepared | None) -> bytes:
    """One event per name asked for. The value is in a comment, so that clients skip the event."""
    nvext = served.request.nvext
    if nvext is None or not nvext.annotations:
        return b""
    values = {"request_id": served.context.id()}
    if prepared is not None:
        if prepared.prompt is not None:
            values["formatted_prompt"] = prepared.prompt
        values["token_ids"] = msgspec.json.encode([*prepared.request.token_ids]).decode()
    names = dict.fromkeys(nvext.annotations)
    return b"".join(
        b"event: %b\n: %b\n\n" % (name.encode(), msgspec.json.encode(values[name])) for name in names if name in values
    )
