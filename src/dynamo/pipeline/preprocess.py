"""Turns OpenAI requests into engine requests: chat template, tokenizer, options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from dynamo.model import LoadedModel, TemplateError
from dynamo.pipeline import parse
from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.constraint_limits import check_fits
from dynamo.pipeline.custom_tools import as_functions
from dynamo.pipeline.guidance import forced_tool, guided_calls, guiding_field
from dynamo.pipeline.options import ModelDefaults, engine_request, max_tokens, template_arguments, too_long
from dynamo.pipeline.postprocess import Postprocess
from dynamo.pipeline.validate import reject_media, text_length
from dynamo.protocols.card import SHOW_SPECIAL_TOKENS, ModelCard
from dynamo.protocols.chat import AnyTool, ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.runtime.metrics import Histogram


def _without_buckets() -> Histogram:
    return Histogram(())


class PromptTimes(Struct):
    template: Histogram = field(default_factory=_without_buckets)
    """Messages into text."""
    tokenize: Histogram = field(default_factory=_without_buckets)
    """Text into token ids, including the hop to a thread for long texts."""


MAX_CHARACTERS = 8 << 20
"""The length of a text that is encoded however many tokens it has."""


class Prepared(Struct):
    """One prompt, ready for an engine, with its text unless the client sent token ids."""

    request: PreprocessedRequest
    prompt: str | None = None

    def choice(self, index: int) -> Prepared:
        """The request for one of several choices: each is sent to a worker separately, with its own seed."""
        sampling = self.request.sampling_options
        seed = None if sampling.seed is None else (sampling.seed + index + 2**63) % 2**64 - 2**63
        single = structs.replace(sampling, n=None, best_of=None, seed=seed)
        return Prepared(structs.replace(self.request, sampling_options=single, choice=index), self.prompt)


class Preprocessor:
    """Prepares the requests to one model, and builds what reads its output."""

    def __init__(self, card: ModelCard, model: LoadedModel, times: PromptTimes | None = None) -> None:
        self.card = card
        self.model = model
        self.mdc_sum = card.checksum()
        self._tool_format = card.runtime_config.tool_call_parser
        self._reasoning_format = card.runtime_config.reasoning_parser
        self._defaults = ModelDefaults(
            sampling=model.sampling,
            eos_token_ids=tuple(model.eos_token_ids),
            context_length=model.context_length,
            lora_name=card.lora.name if card.lora else None,
        )
        self._times = times or PromptTimes()
        widest, context = model.tokenizer.characters_per_token, model.context_length
        self._fitting_characters = min(MAX_CHARACTERS, widest * context) if widest and context else MAX_CHARACTERS
        """Texts of up to this number of characters are never rejected for their length before they are encoded."""
        self._most_characters = max(MAX_CHARACTERS, widest * context) if widest and context else MAX_CHARACTERS
        """The most characters in messages, as a template renders all in one step, whatever it makes of them."""

    async def chat(self, request: ChatRequest) -> Prepared:
        given = request.nvext.token_data if request.nvext else None
        if given:
            self.check_ids(given, "nvext.token_data")
            return self._prepared(request, list(given), None)
        began = perf_counter()
        prompt = self.prompt(request)
        rendered = perf_counter()
        if len(prompt) > self._fitting_characters:
            self._reject_too_long(prompt, "messages", request.truncate_prompt_tokens)
        ids = await self.model.tokenizer.encode_async(prompt, bool(request.add_special_tokens))
        self._times.template.observe(rendered - began)
        self._times.tokenize.observe(perf_counter() - rendered)
        if not ids:
            raise InvalidRequest.bad_value("messages", "there is no token in them")
        return self._prepared(request, ids, prompt)

    def prompt(self, request: ChatRequest) -> str:
        """The text the model continues: the messages in its template, or with `use_raw_prompt` one bare message."""
        if not (request.nvext and request.nvext.use_raw_prompt):
            return self.render(request)
        message = request.messages[0]
        if len(request.messages) > 1 or not isinstance(message.content, str) or request.tools:
            why = "needs a single message whose content is a string, and no tools"
            raise InvalidRequest.bad_value("nvext.use_raw_prompt", why)
        return message.content

    async def count_tokens(self, request: ChatRequest) -> int:
        """The length of the prompt, even if it exceeds the model's context."""
        text = self.render(request)
        reject_characters(text, "messages")
        return len(await self._encode(text))

    async def embedding(self, request: EmbeddingRequest, *, truncate: bool = False) -> list[list[int]]:
        """The token ids of each input; one that is too long for the model is rejected, or cut at its end."""
        inputs = []
        for index, each in enumerate(request.inputs()):
            where = "input" if len(request.inputs()) == 1 else f"input[{index}]"
            if index:
                # Short texts are encoded at once: other requests have their turn between them.
                await asyncio.sleep(0)
            if isinstance(each, str):
                self._reject_too_long(each, where, 1 if truncate else None)
                # Embedding models pool over the special tokens around the text, so here they are needed.
                ids = await self._encode(each, add_special_tokens=True)
            else:
                ids = each
                self.check_ids(ids, where)
            limit = self.model.context_length
            if truncate:
                ids = ids[:limit]
            if not ids:
                raise InvalidRequest.bad_value(where, "there is no token in it")
            if limit is not None and len(ids) > limit:
                raise too_long(where, len(ids), limit)
            inputs.append(ids)
        return inputs

    async def completion(self, request: CompletionRequest) -> list[Prepared]:
        """One entry for each prompt of the request."""
        given = request.nvext.token_data if request.nvext else None
        if given:
            self.check_ids(given, "nvext.token_data")
            return [self._prepared(request, list(given), None)]
        prepared = []
        for index, prompt in enumerate(request.prompts()):
            if index:
                await asyncio.sleep(0)
            if isinstance(prompt, str):
                self._reject_too_long(prompt, "prompt", request.truncate_prompt_tokens)
                ids = await self._encode(prompt, bool(request.add_special_tokens))
                if not ids:
                    raise InvalidRequest.bad_value("prompt", "there is no token in it")
                prepared.append(self._prepared(request, ids, prompt))
            else:
                self.check_ids(prompt, "prompt")
                prepared.append(self._prepared(request, prompt, None))
        return prepared

    def render(self, request: ChatRequest) -> str:
        """The messages as text; an error that the template raises is reported as the client's."""
        if self.model.template is None:
            raise InvalidRequest(
                f"The model '{request.model}' has no chat template; use /v1/completions.", "messages", "no_template"
            )
        reject_media(request.messages)
        if (length := text_length(request.messages)) > self._most_characters:
            raise self._too_many_characters(length, request.truncate_prompt_tokens)
        messages: list[dict[str, Any]] = msgspec.to_builtins(request.messages)
        hidden = request.tool_choice == "none"
        try:
            return self.model.template.render(
                messages,
                tools=msgspec.to_builtins(as_functions(request.tools)) if request.tools and not hidden else None,
                documents=request.documents,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final_message=bool(request.continue_final_message),
                template_args=template_arguments(request),
            )
        except TemplateError as error:
            raise InvalidRequest(f"The chat template refused this: {error}", "messages", "template_error") from error

    def postprocess(
        self,
        prepared: Prepared,
        choice: ChoiceSink,
        chat: ChatRequest | None = None,
        *,
        tool_finish_reason: str = "tool_calls",
        stop_worker: Callable[[], None],
        worker: Callable[[], str],
        token_ids: list[int] | None = None,
        one_by_one: bool = False,
        new_call_id: Callable[[], str] = parse.new_call_id,
    ) -> Postprocess:
        """The way back: turns the output for what was prepared into a choice, parsed as the `chat` request asks."""
        request = prepared.request
        asked = request.output_options.skip_special_tokens
        return Postprocess(
            request,
            self.model.tokenizer.decoder(request.token_ids, True if asked is None else asked),
            choice,
            parser=self._parser(chat, prepared.prompt, new_call_id) if chat else None,
            one_call=bool(chat and chat.parallel_tool_calls is False),
            tool_finish_reason=tool_finish_reason,
            stop_worker=stop_worker,
            worker=worker,
            token_ids=token_ids,
            one_by_one=one_by_one,
        )

    def _parser(self, request: ChatRequest, prompt: str | None, new_id: Callable[[], str]) -> parse.OutputParser | None:
        """Splits the output into content, reasoning and tool calls; None where there is nothing to split."""
        in_reasoning = parse.opens_reasoning(self._reasoning_format, prompt or "")
        if request.tools and request.tool_choice not in (None, "none", "auto"):
            return parse.make_forced_parser(
                forced_tool(request),
                self._reasoning_format,
                self._tool_format,
                in_reasoning=in_reasoning,
                new_id=new_id,
            )
        tools = self._tool_format if request.tools and request.tool_choice != "none" else None
        if tools is None and self._reasoning_format is None:
            return None
        functions = [tool.function for tool in request.tools or ()]
        return parse.make_parser(
            tools,
            self._reasoning_format,
            in_reasoning=in_reasoning,
            tool_names=[function.name for function in functions],
            tool_schemas={function.name: function.parameters for function in functions if function.parameters},
            guided=guiding_field(request) is not None,
            new_id=new_id,
        )

    def _reject_too_long(self, text: str, field: str, truncated_to: int | None = None) -> None:
        """Reject a text that cannot fit into the context, before the time is spent to encode it."""
        limit, tokenizer = self.model.context_length, self.model.tokenizer
        if limit is not None and truncated_to is None and tokenizer.exceeds(text, limit):
            raise too_long(field, tokenizer.fewest_tokens(text), limit, at_least=True)
        if truncated_to is not None or limit is None or tokenizer.characters_per_token is None:
            reject_characters(text, field)

    def _too_many_characters(self, length: int, truncated_to: int | None) -> InvalidRequest:
        widest, context = self.model.tokenizer.characters_per_token, self.model.context_length
        if widest and context and truncated_to is None:
            return too_long("messages", -(-length // widest), context, at_least=True)
        return InvalidRequest.bad_value(
            "messages", f"at most {self._most_characters} characters are allowed, got {length}"
        )

    async def _encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        began = perf_counter()
        ids = await self.model.tokenizer.encode_async(text, add_special_tokens)
        self._times.tokenize.observe(perf_counter() - began)
        return ids

    def _prepared(self, request: ChatRequest | CompletionRequest, ids: list[int], prompt: str | None) -> Prepared:
        reject_guidance(self.card, request)
        if request.logit_bias and len(request.logit_bias) > (size := self.model.tokenizer.vocab_size):
            why = f"{len(request.logit_bias)} biases are more than the model's vocabulary of {size}"
            raise InvalidRequest.bad_value("logit_bias", why)
        if request.truncate_prompt_tokens is not None and len(ids) > (kept := self._kept(request)):
            ids, prompt = ids[-kept:], None
        prepared = engine_request(request, ids, self._defaults, self.mdc_sum)
        if prepared.output_options.skip_special_tokens is None and self._needs_special_tokens(request):
            prepared.output_options.skip_special_tokens = False
        guidance = prepared.sampling_options.guided_decoding
        if guidance and "json" in guidance and (context := self.model.context_length):
            characters = context * (self.model.tokenizer.characters_per_token or context)
            check_fits(guidance["json"], context, characters, guiding_field(request) or "guided_json")
        if guidance and isinstance(request, ChatRequest) and (form := parse.call_form(self._tool_format)):
            calls = guided_calls(request, form)
            if calls:
                guidance["tool_calls"] = calls
        return Prepared(prepared, prompt)

    def _kept(self, request: ChatRequest | CompletionRequest) -> int:
        """The number of tokens that `truncate_prompt_tokens` leaves of a prompt."""
        kept, context = request.truncate_prompt_tokens or 0, self.model.context_length
        if kept > 0 or context is None:
            return kept if kept > 0 else 2**32
        return max(1, context - (max_tokens(request, None, 0) or 1))

    def _needs_special_tokens(self, request: ChatRequest | CompletionRequest) -> bool:
        """Some formats mark calls and reasoning with special tokens, which the parser must see."""
        if self.card.runtime_config.runtime_data.get(SHOW_SPECIAL_TOKENS):
            return True
        tools: list[AnyTool] | None = request.tools if isinstance(request, ChatRequest) else None
        reasoning = self._reasoning_format if isinstance(request, ChatRequest) else None
        return not parse.skip_special_tokens(self._tool_format if tools else None, reasoning)

    def check_ids(self, ids: list[int], param: str) -> None:
        size = self.model.tokenizer.vocab_size
        if max(ids, default=0) >= size:
            wrong = next(id for id in ids if id >= size)
            raise InvalidRequest.bad_value(param, f"token id {wrong} is outside the model's vocabulary of {size}")


def reject_characters(text: str, field: str) -> None:
    """Limit a text that is encoded however many tokens it has."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest.bad_value(field, f"at most {MAX_CHARACTERS} characters are allowed, got {len(text)}")


def reject_guidance(card: ModelCard, request: ChatRequest | CompletionRequest) -> None:
    """Reject a constraint that the engine would ignore: output that violates it is worse than none."""
    field = guiding_field(request)
    if field is not None and not card.accepts_guided_decoding:
        raise InvalidRequest(
            f"`{field}` is not supported by the model '{card.name}': its engine cannot be held to a form of answer.",
            field,
            "unsupported_parameter",
        )
