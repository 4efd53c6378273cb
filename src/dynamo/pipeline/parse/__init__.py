"""Splits a model's output text into content, reasoning and tool calls while it streams.

However the text is cut into pieces, the events concatenate to the same result. The rules:

Reasoning is recognised only at the start of the output, and no call is recognised inside it; formats whose models often
leave it unclosed end it at the marker of a call. Whitespace right after its opening and its closing marker is dropped;
the rest is verbatim.

Whitespace before a call is dropped if nothing else came before it, and whitespace after a call (in harmony: after any
message) always. Markers that only frame the answer (kimi_k3, gemma4) are left out. All other text passes unchanged.

A call begins as soon as its name is certain and its arguments have begun. From then on JSON arguments are passed on
verbatim as they arrive, and so are values in other notations that are certainly strings; other values are passed on one
complete value at a time. What looks like a call but is not one comes out as text, with its markers. A call announced
by a marker may have any name: the client decides how to answer a call of a tool it did not offer. A call without a
marker (a bare JSON object or Python list) is text if its name is not in `tool_names`.

If the output ends inside a call, its arguments stay cut off: JSON closed by guesswork could be a valid call that the
model never made. Text held back because it might become a call comes out as text if the model ended there, and is
dropped if the limit cut it, if a call was forced or if one came before: half a call is no answer.

A call that becomes invalid after it began ends there; what follows is text. An `id` in the output is used unless it
comes after the arguments.

Untyped values (qwen3_coder, glm4, minimax_m2, minimax_m3) are typed by the tool's schema. Without a schema, text that
parses as a JSON number, boolean, null, object or array is that value, and everything else is a string.
"""

from .events import Event, ReasoningText, Text, ToolArgs, ToolStart
from .formats import CallForm
from .guess import guess_formats
from .parser import (
    OutputParser,
    call_form,
    make_forced_parser,
    make_parser,
    new_call_id,
    opens_reasoning,
    reasoning_formats,
    skip_special_tokens,
    tool_formats,
)

__all__ = [
    "CallForm",
    "Event",
    "OutputParser",
    "ReasoningText",
    "Text",
    "ToolArgs",
    "ToolStart",
    "call_form",
    "guess_formats",
    "make_forced_parser",
    "make_parser",
    "new_call_id",
    "opens_reasoning",
    "reasoning_formats",
    "skip_special_tokens",
    "tool_formats",
]
