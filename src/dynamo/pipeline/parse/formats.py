"""Tables of all tool call and reasoning formats."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from .json_calls import HeaderStep, JsonCalls, NamedCall
from .pythonic import PythonicCalls
from .reasoning import ThinkingMarkers
from .xml_calls import XmlCalls


class HarmonyFormat:
    """Both a tool call and a reasoning format; read by `HarmonyReader`."""


HARMONY: Final = HarmonyFormat()

ToolFormat = JsonCalls | XmlCalls | PythonicCalls | NamedCall | HarmonyFormat
ReasoningFormat = ThinkingMarkers | HarmonyFormat

_SEP = "<｜tool▁sep｜>"
_DEEPSEEK_OPEN = (("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), ("<｜tool▁call▁begin｜>",))
_DEEPSEEK_CLOSE = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")

TOOL_FORMATS: Final[dict[str, ToolFormat]] = {
    "hermes": JsonCalls(open=(("<tool_call>",),), close=("</tool_call>",)),
    "jamba": JsonCalls(open=(("<tool_calls>",),), close=("</tool_calls>",)),
    "nemotron_deci": JsonCalls(open=(("<TOOLCALL>",),), close=("</TOOLCALL>",)),
    "phi4": JsonCalls(open=(("functools",),), objects=False),
    "llama3_json": JsonCalls(open=(("<|python_tag|>",),), bare="{", arrays=False, separator=";"),
    "mistral": JsonCalls(
        open=(("[TOOL_CALLS]",),),
        header=(
            HeaderStep(word="name"),
            HeaderStep("[CALL_ID]", word="id", optional=True),
            HeaderStep("[ARGS]", optional=True),
        ),
    ),
    "deepseek_v3": JsonCalls(
        open=_DEEPSEEK_OPEN,
        close=("```", *_DEEPSEEK_CLOSE),
        objects=False,
        arrays=False,
        header=(HeaderStep("function"), HeaderStep(_SEP, word="name"), HeaderStep("```json", optional=True)),
        empty_end=_DEEPSEEK_CLOSE[0],
    ),
    "deepseek_v3_1": JsonCalls(
        open=_DEEPSEEK_OPEN,
        close=_DEEPSEEK_CLOSE,
        objects=False,
        arrays=False,
        header=(HeaderStep(word="name"), HeaderStep(_SEP)),
        empty_end=_DEEPSEEK_CLOSE[0],
    ),
    "kimi_k2": JsonCalls(
        open=(
            ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            ("<|tool_call_section_begin|>", "<|tool_call_begin|>"),
            ("<|tool_call_begin|>",),
        ),
        close=("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        objects=False,
        arrays=False,
        header=(HeaderStep(word="id"), HeaderStep("<|tool_call_argument_begin|>")),
        empty_end="<|tool_call_end|>",
    ),
    "qwen3_coder": XmlCalls(
        open=(("<tool_call>", "<function="), ("<function=",)),
        name_close=">",
        key=("<parameter=", ">"),
        value=("", "</parameter>"),
        newline_padding=True,
        end=("</function>",),
        close=("</tool_call>",),
    ),
    "glm4": XmlCalls(
        open=(("<tool_call>",),),
        key=("<arg_key>", "</arg_key>"),
        value=("<arg_value>", "</arg_value>"),
        end=("</tool_call>",),
    ),
    "pythonic": PythonicCalls(open=(("<|python_start|>",),), close=("<|python_end|>",)),
    "harmony": HARMONY,
}

TOOL_ALIASES: Final[dict[str, str]] = {
    "qwen25": "hermes",
    "qwen": "hermes",
    "nemotron_nano": "qwen3_coder",
    "glm45": "glm4",
    "glm47": "glm4",
}

REASONING_FORMATS: Final[dict[str, ReasoningFormat]] = {
    "basic": ThinkingMarkers(open=("<think>",), close=("</think>",)),
    "deepseek_r1": ThinkingMarkers(open=("<think>",), close=("</think>",), always=True),
    "granite": ThinkingMarkers(
        open=("Here is my thought process:", "Here's my thought process:"),
        close=("Here is my response:", "Here's my response:"),
    ),
    "kimi": ThinkingMarkers(open=("◁think▷",), close=("◁/think▷",)),
    "mistral": ThinkingMarkers(open=("[THINK]",), close=("[/THINK]",)),
    "gpt_oss": HARMONY,
}

REASONING_ALIASES: Final[dict[str, str]] = {
    "qwen3": "basic",
    "deepseek_v3": "basic",
    "deepseek_v3_1": "basic",
    "glm45": "basic",
    "nemotron_deci": "basic",
    "nemotron_nano": "deepseek_r1",
    "nemotron3": "deepseek_r1",
    "nemotron_v3": "deepseek_r1",
    "step3": "deepseek_r1",
}

GUIDED_CALLS: Final = JsonCalls(open=(), bare="[", objects=False)
"""Output that guided decoding constrains to calls: an array of {"name", "parameters"}."""


class CallForm(Struct, frozen=True):
    """How a model writes calls of the form {"name", "arguments"}, exactly as it was trained."""

    begin: str
    end: str
    separator: str


CALL_FORMS: Final = {"hermes": CallForm(begin="<tool_call>\n", end="\n</tool_call>", separator="\n")}

# Formats whose markers are special tokens in at least some models: decoding must not skip those.
SPECIAL_TOOL_MARKERS: Final = frozenset(
    {"hermes", "jamba", "mistral", "kimi_k2", "llama3_json", "pythonic", "harmony", "qwen3_coder"}
)
SPECIAL_REASONING_MARKERS: Final = frozenset({"mistral", "kimi", "gpt_oss"})
