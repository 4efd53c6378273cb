"""What stands where an engine's own command will be."""

from __future__ import annotations

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.runtime.process import fail


def main(engine: str) -> None:
    try:
        make_engine(engine, EngineSpec())
    except EngineError as error:
        raise fail(str(error), error=error) from None
