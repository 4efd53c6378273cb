"""What ai-dynamo's published workers import from `dynamo.common`."""

from typing import Any

from dynamo import __version__ as __version__
from dynamo.compat.missing_names import missing


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
