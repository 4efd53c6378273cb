"""Tables of all tool call and reasoning formats."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from .element_calls import ElementCalls
from .gemma_calls import GemmaCalls
from .json_calls import HeaderStep, JsonCalls, NamedCall
from .pythonic import PythonicCalls
from .reasoning import ReasoningMarkers
from .xml_calls import XmlCalls


class HarmonyFormat:
    """Both a tool call and a reasoning format; read by `HarmonyReader`."""


HARMONY: Final = HarmonyFormat()

ToolFormat = JsonCalls | XmlCalls | ElementCalls | GemmaCalls | PythonicCalls | NamedCall | HarmonyFormat
ReasoningFormat = ReasoningMarkers | HarmonyFormat

_SEP = "<｜tool▁sep｜>"
_DEEPSEEK_OPEN = (("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), ("<｜tool▁call▁begin｜>",))
_DEEPSEEK_CLOSE = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")


def _dsml(block: str) -> XmlCalls:
    """DeepSeek's markup language, since V3.2; only the name of the block around the calls differs between models."""
    invoke = '<｜DSML｜invoke name="'
    return XmlCalls(
        open=((f"<｜DSML｜{block}>", invoke), (invoke,)),
        repeat=invoke,
        name_close='">',
        name_tag=re.compile(r"(?P<name>.*)", re.DOTALL),
        key=('<｜DSML｜parameter name="', '">'),
        key_tag=re.compile(r'(?P<key>.*?)(?:" string="(?P<type>true|false))?', re.DOTALL),
        value=("", "</｜DSML｜parameter>"),
        end=("</｜DSML｜invoke>",),
        close=(f"</｜DSML｜{block}>",),
    )


_MINIMAX = "]<]minimax[>["
_KIMI_K3_FRAME = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>")

TOOL_FORMATS: Final[dict[str, ToolFormat]] = {
    "hermes": JsonCalls(open=(("<tool_call>",),), close=("</tool_call>",)),
    "jamba": JsonCalls(open=(("<tool_calls>",),), close=("</tool_calls>",)),
    "nemotron_deci": JsonCalls(open=(("<TOOLCALL>",),), close=("</TOOLCALL>",)),
    "phi4": JsonCalls(open=(("functools",),), objects=False),
    "llama3_json": JsonCalls(open=(("<|python_tag|>",),), bare_start="{", arrays=False, separator=";"),
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
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "kimi_k3": XmlCalls(
        open=(("<|open|>tools<|sep|>", '<|open|>call tool="'),),
        repeat='<|open|>call tool="',
        name_close="<|sep|>",
        name_tag=re.compile(r'(?P<name>[^"]*)"(?: index="\d+")?'),
        key=('<|open|>argument key="', "<|sep|>"),
        key_tag=re.compile(r'(?P<key>[^"]*)"(?: type="(?P<type>\w+)")?'),
        escapes=True,
        value=("", "<|close|>argument<|sep|>"),
        json_object=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
        end=("<|close|>call<|sep|>",),
        close=("<|close|>tools<|sep|>",),
        ignored=_KIMI_K3_FRAME,
    ),
    "minimax_m2": XmlCalls(
        open=(("<minimax:tool_call>", '<invoke name="'),),
        repeat='<invoke name="',
        name_close='">',
        name_tag=re.compile(r"(?P<name>.*)", re.DOTALL),
        key=('<parameter name="', '">'),
        value=("", "</parameter>"),
        end=("</invoke>",),
        close=("</minimax:tool_call>",),
    ),
    "minimax_m3": ElementCalls(
        open=((f"{_MINIMAX}<tool_call>", f'{_MINIMAX}<invoke name="'),),
        prefix=_MINIMAX,
        repeat=f'{_MINIMAX}<invoke name="',
        name_close='">',
        end="/invoke",
        close=(f"{_MINIMAX}</tool_call>",),
    ),
    "gemma4": GemmaCalls(
        open=(("<|tool_call>", "call:"),),
        quote='<|"|>',
        close=("<tool_call|>", "<|tool_response>"),
        ignored=("<|tool_response>",),  # ends a turn with calls, after text too
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
    "deepseek-v4": "deepseek_v4",
    "deepseekv4": "deepseek_v4",
    "kimi-k3": "kimi_k3",
    "minimax-m3": "minimax_m3",
    "gemma-4": "gemma4",
}

REASONING_FORMATS: Final[dict[str, ReasoningFormat]] = {
    "basic": ReasoningMarkers(open=("<think>",), close=("</think>",)),
    "deepseek_r1": ReasoningMarkers(open=("<think>",), close=("</think>",), starts_inside=True),
    "granite": ReasoningMarkers(
        open=("Here is my thought process:", "Here's my thought process:"),
        close=("Here is my response:", "Here's my response:"),
    ),
    "deepseek_v4": ReasoningMarkers(
        open=("<think>",), close=("</think>",), interrupts=("<｜DSML｜tool_calls>", "<｜DSML｜function_calls>")
    ),
    "kimi_k25": ReasoningMarkers(open=("<think>",), close=("</think>",), interrupts=("<|tool_calls_section_begin|>",)),
    "kimi_k3": ReasoningMarkers(
        open=("<|open|>think<|sep|>",),
        close=("<|close|>think<|sep|>",),
        interrupts=("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
        ignored=_KIMI_K3_FRAME,
    ),
    "minimax_m2": ReasoningMarkers(
        open=("<think>",), close=("</think>",), starts_inside=True, interrupts=("<minimax:tool_call>",)
    ),
    "minimax_m3": ReasoningMarkers(
        open=("<mm:think>",), close=("</mm:think>",), interrupts=(f"{_MINIMAX}<tool_call>",), skippable=True
    ),
    "gemma4": ReasoningMarkers(open=("<|channel>thought",), close=("<channel|>",), interrupts=("<|tool_call>",)),
    "kimi": ReasoningMarkers(open=("◁think▷",), close=("◁/think▷",)),
    "mistral": ReasoningMarkers(open=("[THINK]",), close=("[/THINK]",)),
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
    "deepseek_v3_2": "deepseek_v4",
    "deepseek-v4": "deepseek_v4",
    "deepseekv4": "deepseek_v4",
    "kimi-k3": "kimi_k3",
    "minimax-m3": "minimax_m3",
    "gemma-4": "gemma4",
}

GUIDED_CALLS: Final = JsonCalls(open=(), bare_start="[", objects=False)
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
    | {"kimi_k3", "minimax_m3", "gemma4"}
)
SPECIAL_REASONING_MARKERS: Final = frozenset(
    {"mistral", "kimi", "gpt_oss", "kimi_k25", "kimi_k3", "minimax_m3", "gemma4"}
)
