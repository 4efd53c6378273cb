"""A stand-in for TensorRT-LLM with its published signatures (its API-stability references of 1.x)."""

from tensorrt_llm.llmapi import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]
