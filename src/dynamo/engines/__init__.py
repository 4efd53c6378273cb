"""One module per engine. An engine computes tokens; everything around it is the same for all of them."""

from dynamo.engines.catalog import EngineEntry

__all__ = ["EngineEntry"]
