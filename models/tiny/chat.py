"""The chat template, and the same rendering in pieces, so that training can tell the model's own tokens."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
RESERVED = ("<|reserved_0|>", "<|reserved_1|>", "<|reserved_2|>", "<|reserved_3|>")
SPECIAL = (PAD, START, END, *RESERVED)
# Markers that the model only reads are single tokens. Those it writes (<think>, <tool_call>) are plain text, because
# some engines drop every added token in angle brackets from the text they return.
MARKS = ("<tool_response>", "</tool_response>", "<tools>", "</tools>")
THINK = "Think first."
TOOLS = "You may call tools:"

TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{%- for part in content -%}{%- if part.type == 'text' -%}{{ part.text }}{%- endif -%}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set given = messages and messages[0].role == 'system' -%}
{%- if given or tools or enable_thinking -%}
{{- '<|im_start|>system' -}}
{%- if given -%}{{- '\\n' + text(messages[0].content) -}}{%- endif -%}
{%- if tools -%}
{{- '\\nYou may call tools:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\\n</tools>' -}}
{%- endif -%}
{%- if enable_thinking -%}{{- '\\nThink first.' -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>tool\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) -}}
{%- if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{%- set function = call.function if call.function else call -%}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{%- if function.arguments is string -%}{{- function.arguments -}}
{%- else -%}{{- function.arguments | tojson -}}{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def pieces(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    thinking: bool = False,
    learn_from: int = 0,
    separators: tuple[str, str] = (", ", ": "),
) -> Iterator[tuple[str, bool]]:
    """The rendered text in pieces, each with whether it is trained on."""
    given = bool(messages) and messages[0]["role"] == "system"
    if given or tools or thinking:
        lines = [f"{START}system"]
        if given:
            lines.append(messages[0]["content"])
        if tools:
            offered = [json.dumps(tool, ensure_ascii=False, separators=separators) for tool in tools]
            lines += [TOOLS, "<tools>", *offered, "</tools>"]
        if thinking:
            lines.append(THINK)
        yield "\n".join(lines) + f"{END}\n", False
    for place, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "system" and place == 0:
            continue
        if role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        yield f"{START}{role}\n", False
        yield content + END, role == "assistant" and place >= learn_from
        yield "\n", False


def prompt(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), thinking: bool = False) -> str:
    return "".join(text for text, _ in pieces(messages, tools, thinking)) + f"{START}assistant\n"
