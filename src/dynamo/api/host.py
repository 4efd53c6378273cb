"""What the handlers of APIs need of the process that serves them."""

from __future__ import annotations

from typing import Protocol

from dynamo.api.kept_state import KeptState
from dynamo.api.openai.trace_payload import PayloadCapture
from dynamo.serving.models import Models


class Host(Protocol):
    models: Models
    state: KeptState
    """What is kept between requests, apart for each API key."""
    payloads: PayloadCapture | None
    """Where request traces keep what chats said."""
