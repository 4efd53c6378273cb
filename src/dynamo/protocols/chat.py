"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from dynamo.protocols.fields import GenerationFields, JsonObject, MaxTokens, Name, ReasoningEffort

CUSTOM_INPUT = "input"
"""The argument of a custom tool's function."""


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ImageUrl(Struct, omit_defaults=True):
    url: str
    detail: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class InputAudio(Struct):
    data: str
    format: str


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


class FileSource(Struct, omit_defaults=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(Struct, tag_field="type", tag="file"):
    file: FileSource


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str


Part = TextPart | ImagePart | AudioPart | FilePart | RefusalPart


class FunctionCall(Struct):
    name: str
    arguments: str = ""


class CustomCall(Struct):
    name: str
    input: str = ""


class ToolCall(Struct, kw_only=True):
    """A call in a message, with one of `function` and `custom`; validation turns calls of the second kind into calls of
    the first."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class Message(Struct, kw_only=True, omit_defaults=True):
    """One turn. Unknown fields are dropped, because clients send back whole answers with fields of other servers."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: JsonObject | None = None


class FunctionDefinition(Struct, kw_only=True, omit_defaults=True):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True, tag_field="type", tag="function"):
    function: FunctionDefinition


class InputGrammar(Struct, kw_only=True):
    syntax: Literal["lark", "regex"]
    definition: str


class FreeText(Struct, kw_only=True, tag_field="type", tag="text"):
    """Any input."""


class GrammarFormat(Struct, kw_only=True, tag_field="type", tag="grammar"):
    grammar: InputGrammar


class CustomDefinition(Struct, kw_only=True, omit_defaults=True):
    name: Name
    description: str | None = None
    format: FreeText | GrammarFormat | None = None

    @property
    def grammar(self) -> InputGrammar | None:
        return self.format.grammar if isinstance(self.format, GrammarFormat) else None


class CustomTool(Struct, kw_only=True, tag_field="type", tag="custom"):
    """A tool whose input is text. The model is offered a function with one argument."""

    custom: CustomDefinition

    @property
    def function(self) -> FunctionDefinition:
        description, given = self.custom.description, self.custom.grammar
        argument: JsonObject = {"type": "string"}
        if given and given.syntax == "regex":
            argument["pattern"] = f"^(?:{given.definition})$"
        elif given:
            rule = f"`{CUSTOM_INPUT}` must match this grammar, in Lark's syntax:\n{given.definition}"
            description = f"{description}\n\n{rule}" if description else rule
        parameters = {"type": "object", "properties": {CUSTOM_INPUT: argument}, "required": [CUSTOM_INPUT]}
        return FunctionDefinition(name=self.custom.name, description=description, parameters=parameters)


AnyTool = Tool | CustomTool


class FunctionName(Struct):
    name: str


class NamedToolChoice(Struct, kw_only=True, tag_field="type", tag="function"):
    function: FunctionName


class NamedCustomChoice(Struct, kw_only=True, tag_field="type", tag="custom"):
    """Validation turns it into a `NamedToolChoice`."""

    custom: FunctionName


class AllowedTool(Struct, kw_only=True):
    """With one of the two."""

    function: FunctionName | None = None
    custom: FunctionName | None = None


class AllowedTools(Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class AllowedToolChoice(Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Only these of the request's tools may be called."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | NamedCustomChoice | AllowedToolChoice


class Thinking(Struct, kw_only=True, omit_defaults=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ChatRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    tools: Annotated[list[AnyTool], Meta(max_length=1536)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    reasoning_effort: ReasoningEffort | None = None
    thinking: bool | Thinking | None = None
    chat_template_kwargs: JsonObject | None = None
    chat_template_args: JsonObject | None = None
    documents: list[JsonObject] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    prediction: JsonObject | None = None
    """A guess at the answer that could only speed it up: ignored."""

    modalities: list[str] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    audio: Any = None
    moderation: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    chat_template: Any = None
