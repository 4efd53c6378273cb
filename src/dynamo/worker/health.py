"""The smallest request that tests an engine, and the first test: no worker registers before it was answered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dynamo.engines.base import Engine, EngineError, HealthChecked
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import DynamoException, StreamIncomplete
from dynamo.runtime.stream import FirstAnswer

_FIRST_ANSWER_SECONDS = 300.0
"""The first token of a large model may take minutes, while its weights are read from the disk."""


def health_check_payload(engine: Engine, model: str) -> dict[str, Any]:
    if isinstance(engine, HealthChecked):
        return engine.health_check_payload()
    if engine.model_input is ModelInput.Tokens:
        return {
            "model": model,
            "token_ids": [1],
            "sampling_options": {"temperature": 0.0},
            "stop_conditions": {"max_tokens": 1, "ignore_eos": True},
        }
    return {"model": model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "stream": True}


async def check_answers(engine: Engine, model: str) -> None:
    """Raises EngineError unless the engine answers the health check."""
    payload = health_check_payload(engine, model)
    tokens = engine.model_input is ModelInput.Tokens
    answer = FirstAnswer(whole=True)
    running = engine.generate(msgspec.convert(payload, PreprocessedRequest) if tokens else payload, answer)
    try:
        async with asyncio.timeout(_FIRST_ANSWER_SECONDS):
            await answer.value
    except TimeoutError:
        raise EngineError(f"the engine did not answer a test within {_FIRST_ANSWER_SECONDS:g} s") from None
    except DynamoException as error:
        why = "it ended the answer without a token" if isinstance(error, StreamIncomplete) else error.message
        raise EngineError(f"the engine failed a test: {why}") from error
    finally:
        running.abort()
