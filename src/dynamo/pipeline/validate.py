"""Checks rules between the fields of a request; decoding has already checked types and ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import UNSET

from dynamo.pipeline.constraint_limits import check_schema_limits
from dynamo.pipeline.custom_tools import called_function
from dynamo.pipeline.guidance import (
    GUIDED_FIELDS,
    apply_fields_of_sglang,
    apply_structured_outputs,
    check_guidance,
    check_size,
    choosable_tools,
)
from dynamo.pipeline.schema import check_schema, check_value
from dynamo.protocols.body_shape import BodyLimits, check_texts
from dynamo.protocols.chat import (
    AllowedToolChoice,
    AllowedTools,
    ChatRequest,
    Message,
    NamedCustomChoice,
    NamedToolChoice,
    RefusalPart,
    TextPart,
)
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import GenerationFields, NvExt

MAX_CHOICES = 128
MAX_INPUTS = 2048
MAX_MESSAGES = 4096
"""Rendering that many takes 50 ms, in which no other request has its turn."""
MAX_BIASES = 1 << 18
"""Logit biases of all choices together: every choice is sent to a worker with its own copy."""
MAX_STOP_CHARACTERS = 8192
"""The limit of all stop strings together."""
_ARGUMENT_LIMITS = BodyLimits(items=65_536, fields=65_536)
EXTRA_FIELDS = ("worker_id", "worker_name", "routing", "timing", "stop_reason")
_UNSUPPORTED = {
    "audio": "audio output is not supported",
    "moderation": "moderation is not supported",
    "web_search_options": "web search is not supported",
    "functions": "functions are no longer supported; use `tools`",
    "function_call": "functions are no longer supported; use `tool_choice`",
    "chat_template": "a request cannot bring its own chat template",
}
_unsupported = attrgetter(*_UNSUPPORTED)
_NONE_SET = (None,) * len(_UNSUPPORTED)
_MEANS_NOTHING: tuple[Any, ...] = (None, False, [], "none", "auto")
_RESERVED_TEMPLATE_NAMES = ("chat_template", "messages", "tools", "tokenize")


def validate_chat(request: ChatRequest) -> None:
    match request.tool_choice:
        case AllowedToolChoice(allowed_tools=allowed):
            _keep_allowed_tools(request, allowed)
        case NamedCustomChoice(custom=chosen):
            request.tool_choice = NamedToolChoice(function=chosen)
    _generation(request, request.max_completion_tokens or request.max_tokens)
    if _unsupported(request) != _NONE_SET:
        for name, why in _UNSUPPORTED.items():
            if getattr(request, name) not in _MEANS_NOTHING:
                raise InvalidRequest.unsupported(name, why)
    if request.echo:
        raise InvalidRequest.unsupported("echo", "only a completion can repeat its prompt")
    if request.best_of is not None and request.best_of > (request.n or 1):
        raise InvalidRequest.unsupported("best_of", "only completions choose the best of several answers; see `n`")
    if request.modalities not in (None, [], ["text"]):
        raise InvalidRequest.unsupported("modalities", "only text is produced")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest.bad_value("top_logprobs", "needs `logprobs: true`")
    if request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest.bad_value("continue_final_message", "excludes `add_generation_prompt`")
    _template_arguments(request)
    if len(request.messages) > MAX_MESSAGES:
        raise InvalidRequest.bad_value(
            "messages", f"at most {MAX_MESSAGES} messages are allowed, got {len(request.messages)}"
        )
    arguments: list[str] = []
    for index, message in enumerate(request.messages):
        _message(message, f"messages[{index}]")
        if message.tool_calls:
            arguments += [call.function.arguments for call in message.tool_calls if call.function is not UNSET]
    if arguments:
        # Templates get them as objects.
        check_texts(arguments, _ARGUMENT_LIMITS, "The JSON in the arguments of tool calls")
    if request.tools or request.tool_choice is not None:
        _tools(request)


def validate_completion(request: CompletionRequest) -> None:
    _generation(request, request.max_tokens)
    if request.suffix:
        raise InvalidRequest.unsupported("suffix", "text can only be continued, not filled in")
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest.bad_value("max_tokens", "must be at least 1, or 0 with `echo`")
    if request.max_tokens == 0 and request.stream:
        raise InvalidRequest.bad_value("max_tokens", "0 cannot be streamed")
    _inputs(request.prompt, "prompt")
    prompts, n = len(request.prompts()), request.n or 1
    if prompts * n > MAX_CHOICES:
        raise InvalidRequest.bad_value(
            "n", f"{prompts} prompts with n={n} are {prompts * n} choices; at most {MAX_CHOICES} are allowed"
        )
    best_of = request.best_of or n
    if prompts * best_of > MAX_CHOICES:
        total = prompts * best_of
        raise InvalidRequest.bad_value(
            "best_of", f"{prompts} prompts with best_of={best_of} are {total} choices; the most is {MAX_CHOICES}"
        )
    if request.best_of is not None and request.best_of < n:
        raise InvalidRequest.bad_value("best_of", f"must be at least n ({n}), got {request.best_of}")
    if request.logit_bias:
        _bias_count(request.logit_bias, prompts * best_of)
    if request.stream and request.best_of is not None and request.best_of > n:
        raise InvalidRequest.bad_value("best_of", "greater than n cannot be streamed")
    if request.nvext and request.nvext.token_data and prompts > 1:
        raise InvalidRequest.bad_value("nvext.token_data", "stands for one prompt, but several were given")


def validate_embedding(request: EmbeddingRequest) -> None:
    _not_blank(request.model)
    _inputs(request.input, "input")
    if len(request.inputs()) > MAX_INPUTS:
        raise InvalidRequest.bad_value("input", f"at most {MAX_INPUTS} inputs are allowed, got {len(request.inputs())}")


def reject_media(messages: Sequence[Message]) -> None:
    """Reject images, audio and files, for models that read text only."""
    for index, message in enumerate(messages):
        if isinstance(message.content, list):
            for place, part in enumerate(message.content):
                if not isinstance(part, TextPart | RefusalPart):
                    where = f"messages[{index}].content[{place}]"
                    kind = part.__struct_config__.tag
                    raise InvalidRequest(
                        f"{where}: this model reads text only, not `{kind}`.", where, "unsupported_content"
                    )


def text_length(messages: Sequence[Message]) -> int:
    """The characters in the texts of the messages."""
    length = 0
    for message in messages:
        if isinstance(message.content, str):
            length += len(message.content)
        elif message.content:
            length += sum(len(part.text) for part in message.content if isinstance(part, TextPart))
        if message.reasoning_content:
            length += len(message.reasoning_content)
    return length


def _not_blank(model: str) -> None:
    if not model.strip():
        raise InvalidRequest.bad_value("model", "must not be blank")


def _generation(request: GenerationFields, max_tokens: int | None) -> None:
    _not_blank(request.model)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest.bad_value("stream_options", "is only allowed with `stream: true`")
    greedy = request.temperature == 0 or (request.nvext is not None and request.nvext.greed_sampling)
    if greedy and request.n is not None and request.n > 1:
        raise InvalidRequest.bad_value("n", "more than one choice needs a temperature above 0")
    if request.use_beam_search:
        raise InvalidRequest.unsupported("use_beam_search", "answers are sampled")
    if request.truncate_prompt_tokens == 0:
        raise InvalidRequest.bad_value("truncate_prompt_tokens", "must be -1 or at least 1")
    if request.structured_outputs is not None:
        apply_structured_outputs(request, request.structured_outputs)
    if request.regex is not None or request.json_schema is not None or request.ebnf is not None:
        apply_fields_of_sglang(request)
    if request.min_tokens and max_tokens is not None and request.min_tokens > max_tokens:
        raise InvalidRequest.bad_value(
            "min_tokens", f"must be at most the maximum of {max_tokens} tokens, got {request.min_tokens}"
        )
    if request.logit_bias:
        _bias_count(request.logit_bias, request.n or 1)
        for key in request.logit_bias:
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32):
                raise InvalidRequest.bad_value("logit_bias", f"{key[:32]!r} is not a token id")
    if request.stop:
        stops = [request.stop] if isinstance(request.stop, str) else request.stop
        length = sum(len(each) for each in stops if isinstance(each, str))
        if length > MAX_STOP_CHARACTERS:
            raise InvalidRequest.bad_value(
                "stop", f"at most {MAX_STOP_CHARACTERS} characters are allowed in all, got {length}"
            )
    if request.metadata:
        check_value(request.metadata, "metadata")
    if request.nvext is not None:
        for name in ("backend_instance_id", "prefill_worker_id", "decode_worker_id"):
            if (getattr(request.nvext, name) or 0) >= 2**64:
                raise InvalidRequest.bad_value(f"nvext.{name}", f"must be at most {2**64 - 1}")
        if request.nvext.token_data == []:
            raise InvalidRequest.bad_value("nvext.token_data", "must not be empty")
        _nvext_names(request.nvext)
    check_guidance(request)


def _bias_count(biases: Mapping[str, float], choices: int) -> None:
    if len(biases) * choices > MAX_BIASES:
        raise InvalidRequest.bad_value(
            "logit_bias", f"{len(biases)} biases for {choices} choices; at most {MAX_BIASES // choices} are allowed"
        )


def _nvext_names(nvext: NvExt) -> None:
    for field in nvext.extra_fields or ():
        if field not in EXTRA_FIELDS:
            raise InvalidRequest.bad_value(
                "nvext.extra_fields", f"{field[:64]!r} is not one of {', '.join(EXTRA_FIELDS)}"
            )
    for annotation in nvext.annotations or ():
        if annotation.startswith("query_instance_id"):
            raise InvalidRequest.unsupported("nvext.annotations", "a request is routed when it is sent, not before")


def _template_arguments(request: ChatRequest) -> None:
    if request.chat_template_kwargs is not None and request.chat_template_args is not None:
        raise InvalidRequest.bad_value(
            "chat_template_args", "is another name of `chat_template_kwargs`; give one of them"
        )
    name = "chat_template_args" if request.chat_template_args is not None else "chat_template_kwargs"
    if arguments := getattr(request, name):
        for key in _RESERVED_TEMPLATE_NAMES:
            if key in arguments:
                raise InvalidRequest.unsupported(f"{name}.{key}", "this name belongs to the template itself")
        check_value(arguments, name)
    if request.documents:
        check_value(request.documents, "documents")


def _message(message: Message, where: str) -> None:
    if message.audio is not None:
        raise InvalidRequest.unsupported(f"{where}.audio", "audio answers are not stored")
    if message.content is None:
        answered = message.tool_calls or message.function_call or message.refusal or message.reasoning_content
        if message.role != "assistant" or not (answered or message.reasoning):
            raise InvalidRequest.missing(f"{where}.content")
    if message.content == [] and message.role != "assistant":
        raise InvalidRequest.bad_value(f"{where}.content", "must not be empty")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidRequest.missing(f"{where}.tool_call_id")
    for index, call in enumerate(message.tool_calls or ()):
        if call.custom:
            call.type, call.function, call.custom = "function", called_function(call.custom), UNSET
        elif not call.function:
            raise InvalidRequest.missing(f"{where}.tool_calls[{index}].function")


def check_tool_name(name: str | None, names: Collection[str | None], param: str) -> str:
    """The name in a `tool_choice`, which must be that of an offered tool."""
    if name is None:
        raise InvalidRequest.missing(param)
    if name not in names:
        raise InvalidRequest.bad_value(param, f"there is no tool named {name[:128]!r}")
    return name


def _keep_allowed_tools(request: ChatRequest, allowed: AllowedTools) -> None:
    """The request as if the client had offered the allowed tools only."""
    offered = {tool.function.name: tool for tool in request.tools or ()}
    where = "tool_choice.allowed_tools.tools"
    chosen = [each.function or each.custom for each in allowed.tools]
    names = [check_tool_name(each.name if each else None, offered, where) for each in chosen]
    request.tools = [offered[name] for name in dict.fromkeys(names)]
    request.tool_choice = allowed.mode


def _tools(request: ChatRequest) -> None:
    names = set()
    for index, tool in enumerate(request.tools or ()):
        where = f"tools[{index}].{tool.__struct_config__.tag}"
        if tool.function.name in names:
            raise InvalidRequest.bad_value(f"{where}.name", f"there are two tools named {tool.function.name!r}")
        names.add(tool.function.name)
        if tool.function.parameters is not None:
            check_schema(tool.function.parameters, f"{where}.parameters")
    if request.tool_choice in (None, "none", "auto"):
        return
    if not names:
        raise InvalidRequest.bad_value("tool_choice", "needs `tools`")
    if isinstance(request.tool_choice, NamedToolChoice):
        check_tool_name(request.tool_choice.function.name, names, "tool_choice.function.name")
    # The answer is held to the schemas of the tools, so they are compiled.
    check_size([tool.function.parameters for tool in choosable_tools(request)], "tools")
    for index, tool in enumerate(request.tools or ()):
        check_schema_limits(tool.function.parameters, f"tools[{index}].{tool.__struct_config__.tag}.parameters")
    for name in GUIDED_FIELDS:
        if getattr(request, name) is not None:
            raise InvalidRequest.bad_value(name, "excludes a `tool_choice` that forces a call")


def _inputs(value: str | list[Any], param: str) -> None:
    items = [value] if isinstance(value, str) else value
    if not items:
        raise InvalidRequest.bad_value(param, "must not be empty")
    kinds = set(map(type, items))
    if len(kinds) > 1:
        raise InvalidRequest.bad_value(param, "strings, token ids and lists of token ids cannot be mixed")
    if int in kinds:
        return
    for index, item in enumerate(items):
        if not item:
            raise InvalidRequest.bad_value(
                param if isinstance(value, str) else f"{param}[{index}]", "must not be empty"
            )
