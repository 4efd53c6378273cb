"""`out=mistralrs`, the default but for GGUF files: mistral.rs in this process, with exact token ids in and out."""

from dynamo.engines.mistralrs.engine import MistralRsEngine
from dynamo.engines.mistralrs.load import MistralRsArgs

__all__ = ["MistralRsArgs", "MistralRsEngine"]
