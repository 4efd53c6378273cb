"""The request of POST /v1/responses.

An input item may omit its type, so one struct with optional fields stands for all types. The translation to a chat
request checks each item.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dynamo.protocols.fields import (
    EngineFields,
    FilledString,
    JsonObject,
    JsonObjectFormat,
    MaxTokens,
    Name,
    ReasoningEffort,
    Temperature,
    TextFormat,
    TopP,
)

LOCAL_SHELL, SHELL, APPLY_PATCH = "local_shell", "shell", "apply_patch"
CLIENT_TOOLS = (LOCAL_SHELL, SHELL, APPLY_PATCH)
"""Types of tools that clients run, each also the name of the function that the model is offered for it."""


class InputPart(Struct, kw_only=True, omit_defaults=True):
    type: str = ""
    """Only the output of a shell's command has none."""
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: JsonObject | None = None


class InputItem(Struct, kw_only=True, omit_defaults=True):
    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    action: JsonObject | None = None
    operation: JsonObject | None = None
    status: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    server_label: str | None = None
    """Names an MCP server, which the fields below are about too."""
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None
    error: str | None = None

    @property
    def is_reference(self) -> bool:
        """It stands for a stored item; its type may be left out."""
        return self.type == "item_reference" or (self.type is None and self.role is None and self.id is not None)


class ConversationReference(Struct, kw_only=True, omit_defaults=True):
    id: FilledString


class ToolInputFormat(Struct, kw_only=True, omit_defaults=True):
    """Unlike in a chat request, a grammar is not nested in a `grammar` field."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class ShellAction(Struct, kw_only=True):
    """What a `local_shell` tool is to run."""

    type: Literal["exec"] = "exec"
    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class ShellCommands(Struct, kw_only=True):
    """What a `shell` tool is to run."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class PatchOperation(Struct, kw_only=True, omit_defaults=True):
    """What an `apply_patch` tool is to change; a file that is deleted needs no diff."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


class ResponsesTool(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    format: ToolInputFormat | None = None
    """The format of a `custom` tool's input."""
    tools: list[ResponsesTool] | None = None
    """The functions in a `namespace`."""
    environment: JsonObject | None = None
    """Where the commands of a `shell` run."""
    server_label: str | None = None
    """Names an MCP server, which the fields below are about too."""
    server_url: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | JsonObject | None = None
    require_approval: str | JsonObject | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    connector_id: str | None = None

    @property
    def runs_at_client(self) -> bool:
        if self.type == SHELL and self.environment:
            return self.environment.get("type") == "local"
        return self.type in ("function", "custom", *CLIENT_TOOLS)


class OfferedFunction(Struct, frozen=True):
    """A function of a request, by the name the model calls it and by the one the client knows it by."""

    tool: ResponsesTool
    where: str
    name: str | None
    namespace: str | None = None


class ResponsesToolChoice(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ResponsesTool] | None = None


class ReasoningOptions(Struct, kw_only=True, omit_defaults=True):
    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None

    @property
    def wants_summary(self) -> bool:
        return bool(self.summary or self.generate_summary)


class FlatJsonSchemaFormat(Struct, tag_field="type", tag="json_schema", omit_defaults=True):
    """Unlike in a chat request, the schema is not nested in a `json_schema` field."""

    name: Name
    schema: JsonObject
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True, omit_defaults=True):
    format: TextFormat | JsonObjectFormat | FlatJsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(EngineFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    model: FilledString
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None

    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponsesTool], Meta(max_length=1536)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None

    chat_template_kwargs: JsonObject | None = None
    chat_template_args: JsonObject | None = None

    client_metadata: Any = None
    """What Codex says of itself: ignored."""
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = None
    """Limits calls of OpenAI's built-in tools, which do not exist here: echoed and otherwise ignored."""

    background: bool | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    conversation: FilledString | ConversationReference | None = None
    context_management: Any = None
    moderation: Any = None

    def functions(self) -> list[OfferedFunction]:
        """All tools, those in namespaces too; a name that several of them have gets its namespace in front."""
        found: list[OfferedFunction] = []
        taken: set[str | None] = set()
        for index, tool in enumerate(self.tools or ()):
            where = f"tools[{index}]"
            if tool.type != "namespace":
                name = tool.type if tool.type in CLIENT_TOOLS else tool.name
                found.append(OfferedFunction(tool, where, name))
                taken.add(name)
                continue
            for inner, member in enumerate(tool.tools or ()):
                name = f"{tool.name}__{member.name}" if member.name in taken else member.name
                found.append(OfferedFunction(member, f"{where}.tools[{inner}]", name, tool.name))
                taken.add(name)
        return found

    def translated(self) -> dict[str, OfferedFunction]:
        """The tools that the client knows by another name or kind than the model, by the name the model calls them."""
        if not any(tool.type in ("namespace", "custom", *CLIENT_TOOLS) for tool in self.tools or ()):
            return {}
        return {each.name: each for each in self.functions() if each.name}

    @property
    def conversation_id(self) -> str | None:
        return _conversation_id(self.conversation)

    @property
    def wants_summary(self) -> bool:
        return self.reasoning is not None and self.reasoning.wants_summary


class InputTokensRequest(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """POST /v1/responses/input_tokens: those fields of a Responses request that its prompt depends on."""

    model: FilledString
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: FilledString | ConversationReference | None = None
    reasoning: ReasoningOptions | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponsesTool], Meta(max_length=1536)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    personality: str | None = None
    chat_template_kwargs: JsonObject | None = None

    @property
    def conversation_id(self) -> str | None:
        return _conversation_id(self.conversation)

    def as_response(self) -> ResponsesRequest:
        return ResponsesRequest(
            model=self.model,
            input=[] if self.input is None else self.input,
            instructions=self.instructions,
            reasoning=self.reasoning,
            text=self.text,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            chat_template_kwargs=self.chat_template_kwargs,
        )


def _conversation_id(conversation: str | ConversationReference | None) -> str | None:
    return conversation.id if isinstance(conversation, ConversationReference) else conversation
