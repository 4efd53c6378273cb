"""The command of an engine that this build does not have yet."""

from __future__ import annotations

from dynamo.engines.base import EngineError
from dynamo.engines.registry import load_engine
from dynamo.runtime.process import fail


def main(engine: str) -> None:
    try:
        load_engine(engine)
    except EngineError as error:
        raise fail(str(error), error=error) from None
