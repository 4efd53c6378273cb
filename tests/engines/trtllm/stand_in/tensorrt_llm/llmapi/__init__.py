from tensorrt_llm.llmapi.llm import LLM, DisaggregatedParams, RequestError
from tensorrt_llm.llmapi.llm_args import KvCacheConfig
from tensorrt_llm.llmapi.sampling import GuidedDecodingParams, SamplingParams

__all__ = ["LLM", "DisaggregatedParams", "GuidedDecodingParams", "KvCacheConfig", "RequestError", "SamplingParams"]
