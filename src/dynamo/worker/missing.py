"""The command of an engine that this build does not have yet."""

from __future__ import annotations

from dynamo.engines.base import EngineError
from dynamo.engines.registry import engine_entry
from dynamo.runtime.process import fail


def main(engine: str) -> None:
    try:
        engine_entry(engine)
    except EngineError as error:
        raise fail(str(error), error=error) from None
    use = f"use dynamo-run in=dyn out={engine}"
    raise fail(f"this build does not have the engine '{engine}' as a command of its own yet; {use}")
