"""A conversation with a call and its result is rendered in the notation in which the model writes its calls."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.model import ChatTemplate
from pipeline.parse.templates import TEMPLATES

CALL = {"name": "look_up", "arguments": '{"word":"owl","limit":3,"fields":["a b"]}'}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Owl?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a bird"},
]

DSML = """\
<｜User｜>Owl?<｜Assistant｜><think></think>

<｜DSML｜BLOCK>
<｜DSML｜invoke name="look_up">
<｜DSML｜parameter name="word" string="true">owl</｜DSML｜parameter>
<｜DSML｜parameter name="limit" string="false">3</｜DSML｜parameter>
<｜DSML｜parameter name="fields" string="false">["a b"]</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜BLOCK><｜end▁of▁sentence｜><｜User｜><tool_result>a bird</tool_result><｜Assistant｜><think>"""

EXPECTED = {
    "deepseek_v3_2": DSML.replace("BLOCK", "function_calls"),
    "deepseek_v4": DSML.replace("BLOCK", "tool_calls"),
    "kimi_k3": (
        '<|open|>message role="user"<|sep|>Owl?<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|><|close|>think<|sep|>'
        "<|open|>response<|sep|><|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="look_up" index="1"<|sep|>'
        '<|open|>argument key="word" type="string"<|sep|>owl<|close|>argument<|sep|>'
        '<|open|>argument key="limit" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|open|>argument key="fields" type="array"<|sep|>["a b"]<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="tool" tool="look_up"<|sep|>a bird<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    ),
    "minimax_m2": """\
]~b]user
Owl?[e~[
]~b]ai
<think>

</think>


<minimax:tool_call>
<invoke name="look_up">
<parameter name="word">owl</parameter>
<parameter name="limit">3</parameter>
<parameter name="fields">["a b"]</parameter>
</invoke>
</minimax:tool_call>[e~[
]~b]tool
<response>a bird</response>[e~[
]~b]ai
<think>
""",
    "minimax_m3": """\
]~b]user
Owl?[e~[
]~b]ai
</mm:think>M<tool_call>
M<invoke name="look_up">M<word>owlM</word>M<limit>3M</limit>M<fields>M<item>a bM</item>M</fields>M</invoke>
M</tool_call>[e~[
]~b]tool
<response>a bird</response>[e~[
]~b]ai
""".replace("M<", "]<]minimax[>[<"),
    "gemma4": (
        "<|turn>user\nOwl?<turn|>\n<|turn>model\n"
        '<|tool_call>call:look_up{fields:[<|"|>a b<|"|>],limit:3,word:<|"|>owl<|"|>}<tool_call|>'
        '<|tool_response>response:look_up{value:<|"|>a bird<|"|>}<tool_response|>'
    ),
    "hermes": (
        "<|im_start|>user\nOwl?<|im_end|>\n<|im_start|>assistant\n\n"
        '<tool_call>\n{"name": "look_up", "arguments": {"word": "owl", "limit": 3, "fields": ["a b"]}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\na bird\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_past_calls_and_results_are_rendered_in_the_models_own_notation(name: str) -> None:
    assert ChatTemplate({"default": TEMPLATES[name]}).render(CONVERSATION) == EXPECTED[name]
