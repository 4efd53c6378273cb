"""The smallest request that tests an engine, and the first test: no worker registers before it was answered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dynamo.engines.base import Engine, EngineError, HealthChecked
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import DynamoException

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
    sink = _FirstAnswer()
    running = engine.generate(msgspec.convert(payload, PreprocessedRequest) if tokens else payload, sink)
    try:
        async with asyncio.timeout(_FIRST_ANSWER_SECONDS):
            await sink.done
    except TimeoutError:
        raise EngineError(f"the engine did not answer a test within {_FIRST_ANSWER_SECONDS:g} s") from None
    except DynamoException as error:
        raise EngineError(f"the engine failed a test: {error.message}") from error
    finally:
        running.abort()


class _FirstAnswer:
    """`done` once the stream has ended well."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answered = False

    def tokens(self, ids: list[int]) -> None:
        self._answered = True

    def item(self, value: Any) -> None:
        reason = value.get("finish_reason") if isinstance(value, dict) else getattr(value, "finish_reason", None)
        if str(reason or "").startswith("error"):
            self.fail(DynamoException(str(reason)))
        self._answered = True

    def end(self) -> None:
        if not self._answered:
            self.fail(DynamoException("it ended the answer without a token"))
        elif not self.done.done():
            self.done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
