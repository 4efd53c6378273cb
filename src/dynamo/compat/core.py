"""The names of `dynamo.runtime` and `dynamo.llm` in one module, for programs that import them from here."""

from typing import Any

import dynamo.llm
import dynamo.llm.exceptions
import dynamo.runtime
from dynamo import __version__ as __version__
from dynamo.compat.missing_names import missing
from dynamo.pipeline.parse import reasoning_formats, tool_formats
from dynamo.protocols.instance import Instance as Instance


def get_tool_parser_names() -> list[str]:
    return list(tool_formats())


def get_reasoning_parser_names() -> list[str]:
    return list(reasoning_formats())


def find(module: str, name: str) -> Any:
    """A name of the two libraries, for `module`, which has it too."""
    for library in (dynamo.runtime, dynamo.llm, dynamo.llm.exceptions):
        if not name.startswith("_") and (name in library.__all__ or name in getattr(library, "_EMBEDDED", ())):
            return getattr(library, name)
    raise missing(module, name)
