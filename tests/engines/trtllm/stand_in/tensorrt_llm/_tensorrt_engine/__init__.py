"""Compiled engines are run by another class with the same methods."""

from tensorrt_llm.llmapi.llm import LLM as _LLM


class LLM(_LLM):
    pass


__all__ = ["LLM"]
