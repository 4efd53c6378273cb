"""Asks an instance whether it works: a connection, then the request that it named for this purpose."""

from __future__ import annotations

import asyncio
from typing import Any

from dynamo.protocols.errors import DynamoException
from dynamo.runtime.context import Context
from dynamo.runtime.first_answer import FirstAnswer
from dynamo.runtime.plane.base import Channel

PATIENCE_SECONDS = 5.0
"""How long a probe may take to be answered."""


async def answers(channel: Channel, health_check: Any) -> bool:
    """Whether the instance can be reached and begins a good answer to its health check, if it named one."""
    context, answer = Context(), FirstAnswer()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await channel.open()
            if health_check is not None:
                channel.send(health_check, context, answer)
                await answer.value
            return True
    except (TimeoutError, DynamoException):
        return False
    finally:
        context.kill()
