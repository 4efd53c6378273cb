"""Pure functions that turn a client's request and the model's defaults into the options of an engine request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from dynamo.pipeline.guidance import guided_decoding
from dynamo.protocols.chat import ChatRequest, Thinking
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, Routing, SamplingOptions, StopConditions
from dynamo.protocols.errors import ContextLengthExceeded, InvalidRequest
from dynamo.protocols.fields import GenerationFields


class ModelDefaults(Struct, kw_only=True, frozen=True):
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """The model author's recommendation, for options that the client leaves out."""
    eos_token_ids: tuple[int, ...] = ()
    context_length: int | None = None
    lora_name: str | None = None
    """The adapter that this model is."""


def engine_request(
    request: ChatRequest | CompletionRequest,
    token_ids: Sequence[int],
    defaults: ModelDefaults,
    mdc_sum: str | None = None,
) -> PreprocessedRequest:
    """The complete engine request. Rejects prompts longer than the model's context."""
    return PreprocessedRequest(
        model=request.model,
        # Packed once, for both the router's hashes and the wire.
        token_ids=array("I", token_ids),
        stop_conditions=stop_conditions(request, defaults, len(token_ids)),
        sampling_options=sampling_options(request, defaults.sampling),
        output_options=output_options(request),
        eos_token_ids=[] if ignores_eos(request) else list(defaults.eos_token_ids),
        mdc_sum=mdc_sum,
        annotations=list(request.nvext.annotations or ()) if request.nvext else [],
        routing=routing(request, defaults.lora_name),
        extra_args=extra_args(request),
    )


def ignores_eos(request: GenerationFields) -> bool:
    if request.ignore_eos is not None:
        return request.ignore_eos
    return bool(request.nvext and request.nvext.ignore_eos)


def stop_conditions(request: GenerationFields, defaults: ModelDefaults, prompt_tokens: int) -> StopConditions:
    """With `ignore_eos` the model's own end tokens do not end the answer; the client's stops do."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    texts = [each for each in stop if isinstance(each, str)]
    ids = [each for each in stop if isinstance(each, int)] + (request.stop_token_ids or [])
    ignore_eos = ignores_eos(request)
    return StopConditions(
        max_tokens=max_tokens(request, defaults.context_length, prompt_tokens),
        stop=texts or None,
        stop_token_ids=list(dict.fromkeys(ids)) or None,
        stop_token_ids_hidden=list(defaults.eos_token_ids) if defaults.eos_token_ids and not ignore_eos else None,
        min_tokens=request.min_tokens,
        ignore_eos=True if ignore_eos else request.ignore_eos,
        max_thinking_tokens=_max_thinking_tokens(request),
    )


def max_tokens(request: GenerationFields, context_length: int | None, prompt_tokens: int) -> int | None:
    """The limit the client asked for, but at most what is left of the context."""
    asked = request.max_tokens
    if asked == 0:
        asked = 1  # engines generate at least one token, which is not shown
    if isinstance(request, ChatRequest):
        asked = request.max_completion_tokens or request.max_tokens
    if context_length is None:
        return asked
    chat = isinstance(request, ChatRequest)
    if prompt_tokens >= context_length:
        field = "messages" if chat else "prompt"
        raise too_long(field, prompt_tokens, context_length)
    left = context_length - prompt_tokens
    if request.min_tokens and request.min_tokens > left:
        raise InvalidRequest(
            f"min_tokens: {request.min_tokens} tokens were requested, but only {left} of this model's context of "
            f"{context_length} are left after the prompt.",
            "min_tokens",
            "context_length_exceeded",
        )
    return left if asked is None else min(asked, left)


def too_long(field: str, tokens: int, limit: int, *, at_least: bool = False) -> ContextLengthExceeded:
    count = f"at least {tokens}" if at_least else str(tokens)
    return ContextLengthExceeded(
        f"This model's maximum context length is {limit} tokens. However, your {field} resulted in {count} tokens. "
        f"Please reduce the length of the {field}.",
        field,
        tokens,
        limit,
    )


def sampling_options(request: GenerationFields, defaults: SamplingOptions) -> SamplingOptions:
    nvext = request.nvext
    top_k = _first(request.top_k, nvext and nvext.top_k, defaults.top_k)
    options = SamplingOptions(
        n=request.n,
        best_of=request.best_of if isinstance(request, CompletionRequest) else None,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=_first(
            request.repetition_penalty, nvext and nvext.repetition_penalty, defaults.repetition_penalty
        ),
        temperature=_first(request.temperature, defaults.temperature),
        top_p=_first(request.top_p, defaults.top_p),
        top_k=-1 if top_k == 0 else top_k,
        min_p=_first(request.min_p, defaults.min_p),
        seed=request.seed,
        include_stop_str_in_output=request.include_stop_str_in_output,
        logit_bias=request.logit_bias or None,
        guided_decoding=guided_decoding(request),
    )
    if options.top_p == 0:
        # The likeliest token alone is left of a nucleus of no size, which engines do not take.
        options.top_p, options.top_k = 1.0, 1
    if nvext and nvext.greed_sampling:
        options.temperature, options.top_p, options.top_k, options.min_p = 0.0, None, None, None
    return options


def extra_args(request: GenerationFields) -> dict[str, Any] | None:
    """What only some engines know, under the names by which they know it."""
    sampling = {name: value for name in ("allowed_token_ids", "bad_words") if (value := getattr(request, name))}
    return {"sampling_options": sampling} if sampling else None


def output_options(request: GenerationFields) -> OutputOptions:
    """Asks for at least one alternative, because engines report the chosen token only along with alternatives."""
    logprobs, prompt_logprobs = None, request.prompt_logprobs
    if isinstance(request, ChatRequest) and request.logprobs:
        logprobs = max(1, request.top_logprobs or 0)
    elif isinstance(request, CompletionRequest) and request.logprobs is not None:
        logprobs = max(1, request.logprobs)
        if request.echo and prompt_logprobs is None:
            prompt_logprobs = logprobs
    wanted = bool(request.nvext and "formatted_prompt" in (request.nvext.annotations or ()))
    return OutputOptions(
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=request.skip_special_tokens,
        formatted_prompt=wanted or None,
    )


def routing(request: GenerationFields, lora_name: str | None = None) -> Routing | None:
    nvext = request.nvext
    if nvext is None and lora_name is None and request.cache_salt is None and request.priority is None:
        return None
    hints = nvext.agent_hints if nvext else None
    chosen = Routing(
        backend_instance_id=_first(nvext.backend_instance_id, nvext.decode_worker_id) if nvext else None,
        dp_rank=nvext.dp_rank if nvext else None,
        lora_name=lora_name,
        prefill_worker_id=nvext.prefill_worker_id if nvext else None,
        prefill_dp_rank=nvext.prefill_dp_rank if nvext else None,
        cache_salt=_first(request.cache_salt, nvext and nvext.cache_salt),
        priority=_first(request.priority, hints and hints.priority),
        strict_priority=hints.strict_priority if hints else None,
        expected_output_tokens=hints.osl if hints else None,
    )
    return None if chosen == Routing() else chosen


def template_arguments(request: ChatRequest) -> dict[str, Any]:
    """The chat template's variables beside messages and tools.

    Templates disagree on the variable that switches thinking, so whichever a client sets, all of them are set.
    """
    arguments = dict(request.chat_template_kwargs or request.chat_template_args or {})
    if request.reasoning_effort is not None:
        arguments["reasoning_effort"] = request.reasoning_effort
    mode = _thinking_mode(request, arguments)
    if mode == "adaptive":
        arguments.pop("thinking", None)
        arguments.pop("enable_thinking", None)
        arguments["thinking_mode"] = "adaptive"
    elif mode is not None:
        arguments["thinking"] = arguments["enable_thinking"] = mode == "enabled"
        arguments["thinking_mode"] = mode
    return arguments


def _thinking_mode(request: ChatRequest, arguments: dict[str, Any]) -> str | None:
    if request.thinking is None and not arguments:
        return None
    for value in (request.thinking, arguments.get("thinking"), arguments.get("enable_thinking")):
        if isinstance(value, Thinking):
            return value.type
        if isinstance(value, bool):
            return "enabled" if value else "disabled"
    if (mode := arguments.get("thinking_mode")) in ("enabled", "disabled", "adaptive"):
        return str(mode)
    effort = arguments.get("reasoning_effort")
    if effort is None:
        return None
    return "disabled" if effort == "none" else "enabled"


def _max_thinking_tokens(request: GenerationFields) -> int | None:
    if request.nvext and request.nvext.max_thinking_tokens is not None:
        return request.nvext.max_thinking_tokens
    if isinstance(request, ChatRequest) and isinstance(request.thinking, Thinking):
        return request.thinking.budget_tokens
    return None


def _first(*values: Any) -> Any:
    for value in values:
        if value is not None:
            return value
    return None
