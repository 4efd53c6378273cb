"""One full, valid body per route: the ground that tests mutate."""

from __future__ import annotations

from typing import Any

from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.responses.request import ResponsesRequest
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "$defs": {"days": {"type": "integer", "minimum": 1}},
}
NVEXT = {
    "annotations": ["request_id"],
    "greed_sampling": False,
    "ignore_eos": False,
    "top_k": 4,
    "repetition_penalty": 1.1,
    "backend_instance_id": 2**64 - 1,
    "extra_fields": ["worker_id", "timing"],
    "cache_salt": "s",
    "agent_hints": {"priority": 3, "osl": 100},
    "max_thinking_tokens": 50,
}
GENERATION = {
    "model": "org/model",
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "max_tokens": 64,
    "min_tokens": 2,
    "stop": ["END", 7],
    "stop_token_ids": [8, 9],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "n": 2,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.2,
    "seed": -1,
    "logit_bias": {"50256": -100, "1": 2.5},
    "cache_salt": "salt",
    "priority": -3,
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "nvext": NVEXT,
}
CHAT: dict[str, Any] = GENERATION | {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "In French."}]},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "refusal": None,
            "annotations": [],
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Lyon"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ],
    "max_completion_tokens": 32,
    "logprobs": True,
    "top_logprobs": 3,
    "tools": [
        {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA, "strict": True}},
        {"type": "function", "function": {"name": "time"}},
    ],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "thinking": {"type": "enabled", "budget_tokens": 10},
    "chat_template_kwargs": {"enable_thinking": True},
    "documents": [{"title": "t", "text": "x"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
    "modalities": ["text"],
}
COMPLETION: dict[str, Any] = GENERATION | {
    "prompt": ["a", "b"],
    "best_of": 2,
    "echo": True,
    "logprobs": 2,
    "guided_json": SCHEMA,
    "guided_whitespace_pattern": " ?",
    "suffix": None,
}
EMBEDDING: dict[str, Any] = {
    "model": "m",
    "input": [[1, 2], [3]],
    "encoding_format": "base64",
    "dimensions": 8,
    "user": "u",
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city":"Lyon"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Sunny.", "annotations": [], "logprobs": []}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And Paris?"}]},
    ],
    "stream": True,
    "max_output_tokens": 64,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 2,
    "reasoning": {"effort": "high", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}, "verbosity": "medium"},
    "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True, "description": "d"}],
    "tool_choice": {"type": "function", "name": "weather"},
    "parallel_tool_calls": True,
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "store": True,
    "background": False,
    "previous_response_id": None,
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 64,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Lyon"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "So?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ],
        },
    ],
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "stop_sequences": ["END"],
    "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
}
COUNT: dict[str, Any] = {
    key: MESSAGES[key] for key in ("model", "system", "messages", "tools", "tool_choice", "thinking")
}

BODIES: dict[type[Any], dict[str, Any]] = {
    ChatRequest: CHAT,
    CompletionRequest: COMPLETION,
    EmbeddingRequest: EMBEDDING,
    ResponsesRequest: RESPONSES,
    MessagesRequest: MESSAGES,
    CountTokensRequest: COUNT,
}
