"""What a logits processor for an engine looks like."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

__all__ = ["BaseLogitsProcessor"]


@runtime_checkable
class BaseLogitsProcessor(Protocol):
    def __call__(self, input_ids: Sequence[int], logits: Any) -> None:
        """Change `logits`, a tensor with one value per token of the vocabulary, in place."""
