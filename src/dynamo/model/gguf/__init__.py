"""GGUF files: what they hold, and their tokenizers."""

from dynamo.model.gguf.file import COUNT_OF_TENSORS, Gguf, is_quantised, read_gguf

__all__ = ["COUNT_OF_TENSORS", "Gguf", "is_quantised", "read_gguf"]
