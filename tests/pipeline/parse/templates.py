"""Small chat templates that write calls and reasoning as the models' own templates do."""

from __future__ import annotations

_DSML = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{ '<｜User｜>' + m.content + '<｜Assistant｜>' }}
{%- elif m.role == 'tool' -%}
{{ '<｜User｜><tool_result>' + m.content + '</tool_result><｜Assistant｜>' }}
{%- else -%}
{{ '<think>' + (m.reasoning_content or '') + '</think>' + m.content }}
{%- if m.tool_calls -%}
{{ '\\n\\n<｜DSML｜BLOCK>\\n' }}
{%- for call in m.tool_calls -%}
{{ '<｜DSML｜invoke name="' + call.function.name + '">\\n' }}
{%- for key, value in call.function.arguments.items() -%}
{{ '<｜DSML｜parameter name="' + key + '" string="' + ('true' if value is string else 'false') + '">' }}
{{- value if value is string else value | tojson }}
{{- '</｜DSML｜parameter>\\n' }}
{%- endfor -%}
{{ '</｜DSML｜invoke>\\n' }}
{%- endfor -%}
{{ '</｜DSML｜BLOCK>' }}
{%- endif -%}
{{ '<｜end▁of▁sentence｜>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<think>' }}{%- endif -%}
"""

_KIMI_K3 = """
{%- macro attribute(text) -%}
{{- text | replace('&', '&amp;') | replace('"', '&quot;') -}}
{%- endmacro -%}
{%- macro type(value) -%}
{%- if value is boolean -%}boolean{%- elif value is none -%}null{%- elif value is number -%}number
{%- elif value is string -%}string{%- elif value is mapping -%}object{%- else -%}array{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{{ '<|open|>message role="' + m.role + '"' }}
{%- for call in (messages[loop.index0 - 1].tool_calls or []) if m.role == 'tool' and call.id == m.tool_call_id -%}
{{ ' tool="' }}{{ attribute(call.function.name) }}{{ '"' }}
{%- endfor -%}
{{ '<|sep|>' }}
{%- if m.role != 'assistant' -%}
{{ m.content }}
{%- else -%}
{{ '<|open|>think<|sep|>' + (m.reasoning_content or '') + '<|close|>think<|sep|>' }}
{{- '<|open|>response<|sep|>' + m.content + '<|close|>response<|sep|>' }}
{%- if m.tool_calls -%}
{{ '<|open|>tools<|sep|>' }}
{%- for call in m.tool_calls -%}
{{ '<|open|>call tool="' }}{{ attribute(call.function.name) }}{{ '" index="' ~ loop.index ~ '"<|sep|>' }}
{%- for key, value in call.function.arguments.items() -%}
{{ '<|open|>argument key="' }}{{ attribute(key) }}{{ '" type="' }}{{ type(value) }}{{ '"<|sep|>' }}
{{- value if value is string else value | tojson }}
{{- '<|close|>argument<|sep|>' }}
{%- endfor -%}
{{ '<|close|>call<|sep|>' }}
{%- endfor -%}
{{ '<|close|>tools<|sep|>' }}
{%- endif -%}
{%- endif -%}
{{ '<|close|>message<|sep|><|end_of_msg|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>' }}{%- endif -%}
"""

_MINIMAX_M2 = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{ ']~b]user\\n' + m.content + '[e~[\\n' }}
{%- elif m.role == 'tool' -%}
{{ ']~b]tool\\n<response>' + m.content + '</response>[e~[\\n' }}
{%- else -%}
{{ ']~b]ai\\n<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' + m.content }}
{%- if m.tool_calls -%}
{{ '\\n<minimax:tool_call>\\n' }}
{%- for call in m.tool_calls -%}
{{ '<invoke name="' + call.function.name + '">\\n' }}
{%- for key, value in call.function.arguments.items() -%}
{{ '<parameter name="' + key + '">' }}
{{- value if value is string else value | tojson }}
{{- '</parameter>\\n' }}
{%- endfor -%}
{{ '</invoke>\\n' }}
{%- endfor -%}
{{ '</minimax:tool_call>' }}
{%- endif -%}
{{ '[e~[\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ ']~b]ai\\n<think>\\n' }}{%- endif -%}
"""

_MINIMAX_M3 = """
{%- set mark = ']<]minimax[>[' -%}
{%- macro xml(value) -%}
{%- if value is mapping -%}
{%- for key, inner in value.items() -%}{{ mark ~ '<' ~ key ~ '>' }}{{ xml(inner) }}{{ mark ~ '</' ~ key ~ '>' }}
{%- endfor -%}
{%- elif value is string -%}
{{- value -}}
{%- elif value is sequence -%}
{%- for inner in value -%}{{ mark ~ '<item>' }}{{ xml(inner) }}{{ mark ~ '</item>' }}{%- endfor -%}
{%- else -%}
{{- value | tojson -}}
{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{ ']~b]user\\n' + m.content + '[e~[\\n' }}
{%- elif m.role == 'tool' -%}
{{ ']~b]tool\\n<response>' + m.content + '</response>[e~[\\n' }}
{%- else -%}
{{ ']~b]ai\\n' }}
{{- '<mm:think>' + m.reasoning_content + '</mm:think>' if m.reasoning_content else '</mm:think>' }}
{{- m.content }}
{%- if m.tool_calls -%}
{{ mark + '<tool_call>\\n' }}
{%- for call in m.tool_calls -%}
{{ mark + '<invoke name="' + call.function.name + '">' }}
{{- xml(call.function.arguments) }}
{{- mark + '</invoke>\\n' }}
{%- endfor -%}
{{ mark + '</tool_call>' }}
{%- endif -%}
{{ '[e~[\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ ']~b]ai\\n' }}{%- endif -%}
"""

_GEMMA4 = """
{%- macro argument(value) -%}
{%- if value is none -%}null
{%- elif value is string -%}{{ '<|"|>' + value + '<|"|>' }}
{%- elif value is boolean or value is number -%}{{ value | tojson }}
{%- elif value is mapping -%}
{{ '{' }}{%- for key, inner in value | dictsort -%}{{ key }}:{{ argument(inner) }}{{ ',' if not loop.last }}
{%- endfor -%}{{ '}' }}
{%- else -%}
[{%- for inner in value -%}{{ argument(inner) }}{{ ',' if not loop.last }}{%- endfor -%}]
{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{ '<|turn>user\\n' + m.content + '<turn|>\\n' }}
{%- elif m.role == 'tool' -%}
{%- for call in messages[loop.index0 - 1].tool_calls if call.id == m.tool_call_id -%}
{{ 'response:' + call.function.name + '{value:' }}{{ argument(m.content) }}{{ '}<tool_response|>' }}
{%- endfor -%}
{%- else -%}
{{ '<|turn>model\\n' }}
{{- '<|channel>thought\\n' + m.reasoning_content + '\\n<channel|>' if m.reasoning_content }}
{%- for call in m.tool_calls or [] -%}
{{ '<|tool_call>call:' + call.function.name }}
{%- if call.function.arguments is mapping -%}{{ argument(call.function.arguments) }}
{%- elif call.function.arguments is string -%}{{ '{' + call.function.arguments + '}' }}
{%- endif -%}
{{ '<tool_call|>' }}
{%- endfor -%}
{{ m.content }}{{ '<|tool_response>' if m.tool_calls else '<turn|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}{{ '<|turn>model\\n' }}{%- endif -%}
"""

_HERMES = """
{%- for m in messages -%}
{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}
{%- if m.reasoning_content -%}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif -%}
{{ '<tool_response>\\n' + m.content + '\\n</tool_response>' if m.role == 'tool' else m.content }}
{%- for call in m.tool_calls or [] -%}
{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

TEMPLATES = {
    "deepseek_v3_2": _DSML.replace("BLOCK", "function_calls").strip(),
    "deepseek_v4": _DSML.replace("BLOCK", "tool_calls").strip(),
    "kimi_k3": _KIMI_K3.strip(),
    "minimax_m2": _MINIMAX_M2.strip(),
    "minimax_m3": _MINIMAX_M3.strip(),
    "gemma4": _GEMMA4.strip(),
    "hermes": _HERMES.strip(),
}
TURN_ENDS = ("<｜end▁of▁sentence｜>", "<|end_of_msg|>", "[e~[\n", "<turn|>\n", "<|im_end|>\n")
