"""The response of POST /v1/responses: an object that echoes the request and lists the produced items."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, to_builtins

from dynamo.api.responses.calls import CallItem, CallItems, ItemStatus, end_call, item_id
from dynamo.api.responses.mcp_items import McpApprovalRequestItem, McpCallItem, McpListToolsItem
from dynamo.api.responses.mcp_turn import McpTurn
from dynamo.api.responses.request import ResponsesRequest, ResponsesTool
from dynamo.protocols.answers import ChatCompletion, ChatLogprob, CompletionUsage

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class OutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningContent(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, kw_only=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """A request for a summary gets the reasoning as its summary, any other as its content."""

    id: str
    status: ItemStatus
    summary: list[SummaryText] = []
    content: list[ReasoningContent] = []


OutputItem = OutputMessage | ReasoningItem | CallItem | McpListToolsItem | McpCallItem


class ResponsesUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int

    @staticmethod
    def of(usage: CompletionUsage) -> ResponsesUsage:
        return ResponsesUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details={"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            output_tokens=usage.completion_tokens,
            output_tokens_details={"reasoning_tokens": usage.reasoning_tokens},
            total_tokens=usage.total_tokens,
        )


class ResponseObject(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    background: bool = False
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: dict[str, str] | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int | None
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None

    @staticmethod
    def in_progress(request: ResponsesRequest, response_id: str, model: str, created: int) -> ResponseObject:
        """The object before the first token."""
        # Clients' types require these fields of a tool and a format even where the request omitted them.
        required = {"parameters": None, "strict": None}
        tools = [(required if tool.type == "function" else {}) | _shown(tool) for tool in request.tools or ()]
        reasoning, conversation = request.reasoning, request.conversation_id
        return ResponseObject(
            id=response_id,
            created_at=created,
            status="in_progress",
            background=bool(request.background),
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            metadata=request.metadata or {},
            model=model,
            output=[],
            parallel_tool_calls=request.parallel_tool_calls is not False,
            previous_response_id=request.previous_response_id,
            conversation=None if conversation is None else {"id": conversation},
            prompt_cache_key=request.prompt_cache_key,
            reasoning={"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
            safety_identifier=request.safety_identifier,
            store=bool(request.store),
            temperature=request.temperature,
            text={"format": {"type": "text"}, **(to_builtins(request.text) if request.text else {})},
            tool_choice=to_builtins(request.tool_choice) or "auto",
            tools=tools,
            top_logprobs=request.top_logprobs,
            top_p=request.top_p,
            user=request.user,
        )

    def finish(self, finish_reason: str, usage: CompletionUsage) -> None:
        """Set usage and status: `length` and `content_filter` mean incomplete, everything else completed."""
        self.usage = ResponsesUsage.of(usage)
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish_reason)
        self.status = "incomplete" if reason else "completed"
        self.incomplete_details = {"reason": reason} if reason else None


def response_of(
    request: ResponsesRequest, response_id: str, chat: ChatCompletion, mcp: McpTurn | None = None
) -> ResponseObject:
    """Convert the answer to the chat request that a Responses request was translated to."""
    choice = chat.choices[0]
    response = ResponseObject.in_progress(request, response_id, chat.model, chat.created)
    response.finish(choice.finish_reason, chat.usage)
    status: ItemStatus = "incomplete" if response.status == "incomplete" else "completed"
    output, message = response.output, choice.message
    if mcp:
        output += mcp.begins_with
    if message.reasoning_content:
        item = ReasoningItem(id=item_id("rs", response_id, len(output)), status=status)
        if request.wants_summary:
            item.summary.append(SummaryText(text=message.reasoning_content))
        else:
            item.content.append(ReasoningContent(text=message.reasoning_content))
        output.append(item)
    if message.content:
        logprobs = (choice.logprobs and choice.logprobs.content) or []
        part = OutputText(text=message.content, logprobs=logprobs)
        output.append(OutputMessage(id=item_id("msg", response_id, len(output)), status=status, content=[part]))
    items = CallItems(request, response_id, mcp.functions if mcp else None)
    for call in message.tool_calls or ():
        made = items.begin(len(output), call.id, call.name)
        if not isinstance(made, McpApprovalRequestItem):
            made.status = status
        end_call(made, call.arguments)
        output.append(made)
    return response


def _shown(tool: ResponsesTool) -> dict[str, Any]:
    """Without what lets the client into an MCP server: responses are stored."""
    shown: dict[str, Any] = to_builtins(tool)
    return {name: value for name, value in shown.items() if name not in ("authorization", "headers")}


class InputTokens(Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
