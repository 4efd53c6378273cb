"""The names of `dynamo.runtime` and `dynamo.llm` in one module, for programs that import them from here."""

from typing import Any

from dynamo.compat import core
from dynamo.compat.core import Instance, __version__, get_reasoning_parser_names, get_tool_parser_names

__all__ = ["Instance", "__version__", "get_reasoning_parser_names", "get_tool_parser_names"]


def __getattr__(name: str) -> Any:
    return core.find(__name__, name)
