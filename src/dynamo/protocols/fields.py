"""Fields shared by several OpenAI requests, with their ranges as types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
MaxTokens = Annotated[int, Meta(ge=1, le=2**20)]
StopText = Annotated[str, Meta(min_length=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=2)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
# `$` would let a final newline pass, and `\\Z` is not in the regex dialect of JSON Schema.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}(?![\s\S])")]
FilledString = Annotated[str, Meta(min_length=1)]
Uint32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]

JsonObject = dict[str, Any]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class AgentHints(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hints for scheduling; `priority`, `strict_priority` and `osl` (expected tokens of the answer) have an effect."""

    priority: Priority | None = None
    strict_priority: Uint32 | None = None
    osl: Uint32 | None = None
    speculative_prefill: bool | None = None
    latency_sensitivity: float | None = None


class NvExt(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    annotations: list[str] | None = None
    use_raw_prompt: bool | None = None
    greed_sampling: bool | None = None
    ignore_eos: bool | None = None
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty | None = None
    backend_instance_id: Annotated[int, Meta(ge=0)] | None = None
    dp_rank: Uint32 | None = None
    prefill_worker_id: Annotated[int, Meta(ge=0)] | None = None
    prefill_dp_rank: Uint32 | None = None
    decode_worker_id: Annotated[int, Meta(ge=0)] | None = None
    token_data: list[TokenId] | None = None
    extra_fields: list[str] | None = None
    cache_salt: str | None = None
    agent_hints: AgentHints | None = None
    max_thinking_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    request_timestamp_ms: float | None = None


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    pass


class JsonSchema(Struct, kw_only=True, omit_defaults=True):
    name: Name
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class ServiceFields(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields for OpenAI's own service (billing, storage, caching): accepted, without effect on the answer."""

    user: FilledString | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: JsonObject | None = None


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """vLLM's newer form of the `guided_*` fields."""

    json: JsonObject | str | None = None
    regex: FilledString | None = None
    choice: Annotated[list[FilledString], Meta(min_length=1)] | None = None
    grammar: FilledString | None = None
    json_object: bool | None = None
    whitespace_pattern: FilledString | None = None
    structural_tag: Any = None


class EngineFields(ServiceFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Extensions that engines know, the same on every route that generates."""

    min_tokens: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    stop: StopText | Annotated[list[StopText | TokenId], Meta(max_length=32)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: list[FilledString] | None = None
    use_beam_search: bool | None = None

    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    """Keep only this number of tokens at the prompt's end; -1 keeps what fits into the context."""
    add_special_tokens: bool | None = None

    guided_json: JsonObject | str | None = None
    guided_regex: FilledString | None = None
    guided_choice: Annotated[list[FilledString], Meta(min_length=1)] | None = None
    guided_grammar: FilledString | None = None
    guided_whitespace_pattern: FilledString | None = None
    guided_decoding_backend: str | None = None
    structured_outputs: StructuredOutputs | None = None
    regex: FilledString | None = None
    json_schema: JsonObject | str | None = None
    ebnf: FilledString | None = None
    """SGLang's names of `guided_regex`, `guided_json` and `guided_grammar`."""

    cache_salt: FilledString | None = None
    priority: Priority | None = None
    nvext: NvExt | None = None


ENGINE_FIELDS = tuple(name for name in EngineFields.__struct_fields__ if name not in ServiceFields.__struct_fields__)


class GenerationFields(EngineFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields shared by chat and completions requests."""

    model: FilledString

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: MaxTokens | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    """vLLM's extension: the answer has the ids of its tokens and of the prompt's."""

    response_format: ResponseFormat | None = None
    metadata: JsonObject | None = None


Metadata = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
