"""Splits a model's output text into content, reasoning and tool calls while it streams.

However the text is cut into pieces, the events concatenate to the same result. The rules:

Reasoning comes first: inside it no call is recognised. It is looked for only at the start of the output. Whitespace
right after its opening and its closing marker is dropped; the rest is verbatim.

Whitespace before a call is dropped if nothing else came before it, and whitespace after a call (in harmony: after any
message) always. All other text passes unchanged.

A call begins as soon as its name is certain and its arguments have begun; from then on JSON arguments pass verbatim as
they arrive, other notations one finished argument at a time. What looks like a call but is none comes out as text, with
its markers. Where a marker announces the call, any name is accepted: the client knows best how to answer a call of a
tool it never offered. Where no marker does (a bare JSON object or Python list), a name not in `tool_names` makes it
text.

An output that ends inside a call leaves its arguments cut short: JSON closed by guesswork could be a valid call that
the model never made. What was held back before the call had begun comes out as text.

A call that goes wrong after it has begun ends there; what follows is text. An `id` that the format carries is used
unless it comes after the arguments.

Untyped values (qwen3_coder, glm4) follow the tool's schema. Where it says nothing, what parses as a JSON number,
boolean, null, object or array is one, and everything else is a string.
"""

from .events import Event, Text, ThoughtText, ToolArgs, ToolStart
from .parser import (
    OutputParser,
    make_forced_parser,
    make_parser,
    new_call_id,
    opens_reasoning,
    reasoning_formats,
    skip_special_tokens,
    tool_formats,
)

__all__ = [
    "Event",
    "OutputParser",
    "Text",
    "ThoughtText",
    "ToolArgs",
    "ToolStart",
    "make_forced_parser",
    "make_parser",
    "new_call_id",
    "opens_reasoning",
    "reasoning_formats",
    "skip_special_tokens",
    "tool_formats",
]
