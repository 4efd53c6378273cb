from tensorrt_llm.llmapi.llm import LLM, RequestError
from tensorrt_llm.llmapi.llm_args import KvCacheConfig
from tensorrt_llm.llmapi.sampling import GuidedDecodingParams, SamplingParams

__all__ = ["LLM", "GuidedDecodingParams", "KvCacheConfig", "RequestError", "SamplingParams"]
