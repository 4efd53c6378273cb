from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.model import ChatTemplate, ModelError, TemplateError
from dynamo.model.files import find_files
from dynamo.model.rendering import Renderer
from dynamo.model.template import load_template
from support import models

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"z": 1, "a": "é<&'"}}}]
WITH_TOOLS = (
    "{%- if tools %}{{- 'Tools\\n' }}{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}{{- '<' + message.role + '>' }}"
    "{%- if message.content is string %}{{- message.content }}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- call.function.name }}{%- for key, value in call.function.arguments.items() %} {{ key }}={{ value | tojson }}"
    "{%- endfor %}{%- endfor %}{%- endfor %}"
)
PARTS = (
    "{% for message in messages %}{{ message.role }}:{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}|{% else %}[{{ part.type }}]{% endif %}{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}|{% endfor %}{% endif %}{% endfor %}"
)


def template(source: str, **special: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special)


LOADED = {source: template(source) for source in (models.CHATML, WITH_TOOLS, PARTS, EITHER)}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_chatml_is_rendered_by_minijinja() -> None:
    chatml = template(models.CHATML)
    assert chatml.engine == "minijinja"
    text = chatml.render([{"role": "system", "content": "be kind"}, USER])
    assert text == ("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert chatml.render([USER], add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_special_tokens_are_written_out() -> None:
    llama = template(models.LLAMA2, bos_token="<s>", eos_token="</s>")
    assert llama.render([USER, {"role": "assistant", "content": "yo"}]) == "<s>[INST] hi [/INST] yo </s>"


def test_a_template_error_carries_the_templates_own_message() -> None:
    with pytest.raises(TemplateError, match=r"^only user and assistant roles are supported$"):
        template(models.LLAMA2).render([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(
    "source", ["{{ messages[0].a.b.c }}", "{{ 1 // 0 }}", "{{ messages[7].content + 1 }}", "{{ nothing() }}"]
)
def test_any_failure_in_a_template_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError, match=r"^the chat template failed: "):
        template(source).render([USER])


def test_a_template_cannot_reach_the_interpreter() -> None:
    with pytest.raises(TemplateError):
        template("{{ messages.__class__.__mro__[1].__subclasses__() }}").render([USER])


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'open", "{% unknown_tag %}", "{% if x %}"])
def test_a_template_that_is_not_jinja_cannot_be_loaded(source: str) -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        template(source)


def test_json_keeps_key_order_and_characters() -> None:
    rendered = template(WITH_TOOLS).render([USER], tools=TOOLS)
    assert '{"type": "object", "properties": {}, "z": 1, "a": "é<&\'"}' in rendered


def test_json_can_be_indented() -> None:
    assert template("{{ messages[0] | tojson(indent=2) }}").render([USER]) == json.dumps(USER, indent=2)


def test_call_arguments_given_as_text_reach_the_template_as_objects() -> None:
    tools = template(WITH_TOOLS)
    assert tools.render([USER, called('{"q": "x", "n": [1]}')]) == '<user>hi<assistant>look q="x" n=[1]'
    assert tools.render([USER, called("")]) == "<user>hi<assistant>look"
    assert tools.render([USER, called({"q": 1})]) == "<user>hi<assistant>look q=1"


DEEP = '{"a": ' * 90 + "1" + "}" * 90


@pytest.mark.parametrize("text", ["{oops", '{"city": "Par', "[1]", "7", '"x"', "null", '{"a": "\\ud800"}', DEEP])
def test_call_arguments_that_are_no_object_reach_the_template_as_the_value_of_one(text: str) -> None:
    rendered = template(WITH_TOOLS).render([USER, called(text)])
    assert rendered == f"<user>hi<assistant>look INVALID_JSON={json.dumps(text)}"


def test_call_arguments_may_have_numbers_of_any_size() -> None:
    assert template(WITH_TOOLS).render([called(f'{{"n": {2**100}}}')]) == f"<assistant>look n={2**100}"


def calls_as(written: str) -> ChatTemplate:
    each = "{% for m in messages %}{% for call in m.tool_calls or [] %}{% set arguments = call.function.arguments %}"
    return template(f"{each}{written}{{% endfor %}}{{% endfor %}}")


def test_call_arguments_stay_text_if_the_template_writes_objects_as_json_too() -> None:
    written = "{{ arguments if arguments is string else arguments | tojson }}"
    assert calls_as(written).render([USER, called('{"q":1}')]) == '{"q":1}'


def test_call_arguments_stay_text_if_the_template_does_not_write_objects() -> None:
    assert calls_as("{{ arguments if arguments is string }}").render([USER, called('{"q":1}')]) == '{"q":1}'


def test_call_arguments_stay_text_if_the_template_accepts_only_text() -> None:
    assert calls_as("{{ '>' + arguments }}").render([USER, called('{"q":1}')]) == '>{"q":1}'


def test_call_arguments_become_an_object_if_the_template_writes_objects_in_its_own_notation() -> None:
    own = calls_as(
        "{% if arguments is mapping %}{% for key, value in arguments | items %}{{ key }}:{{ value }}{% endfor %}"
        "{% elif arguments is string %}{{ arguments }}{% endif %}"
    )
    assert own.render([USER, called('{"q":1}')]) == "q:1"


def test_the_form_of_call_arguments_is_found_if_the_template_accepts_only_ids_of_nine_letters() -> None:
    refusal = "{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    message = called('{"q":1}')
    message["tool_calls"][0]["id"] = "abcdefghi"
    assert calls_as(refusal + "{{ '>' + arguments }}").render([USER, message]) == '>{"q":1}'


def test_null_fields_are_hidden_from_the_template() -> None:
    source = "{% for m in messages %}{{ 'tool_calls' in m }}{{ 'name' in m }}{{ 'content' in m }}{% endfor %}"
    empty: Any = {"role": "assistant", "content": "x", "tool_calls": [], "name": None}
    assert template(source).render([empty]) == "FalseFalseTrue"


def test_null_content_is_not_printed_as_none() -> None:
    text = template(models.CHATML).render([USER, called("{}")])
    assert "None" not in text


def test_null_content_stays_none_if_the_template_handles_it() -> None:
    source = "{% for m in messages %}{% if m.content is none %}<none>{% else %}{{ m.content }}{% endif %}{% endfor %}"
    assert template(source).render([USER, called("{}")]) == "hi<none>"


def test_text_parts_are_joined_for_a_template_of_strings() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo<|im_end|>" in template(models.CHATML).render([{"role": "user", "content": parts}])


def test_parts_stay_parts_for_a_template_that_takes_them() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    message = {"role": "user", "content": parts}
    assert template(PARTS).render([message]) == "user:one|[image]"
    assert template(EITHER).render([{"role": "user", "content": parts[:1]}]) == "one|"
    assert template(EITHER).render([USER]) == "hi"


def test_a_string_becomes_a_part_for_a_template_of_parts_only() -> None:
    assert template(PARTS).render([USER]) == "user:hi|"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, r"messages\[0\].content\[0\]: this model takes text only"),
        ({"type": "hologram"}, r"messages\[0\].content\[0\]: unknown type of content 'hologram'"),
        ({"type": "text"}, r"messages\[0\].content\[0\]: a part of type text needs a text"),
        (7, r"messages\[0\].content\[0\]: unknown type of content None"),
    ],
)
def test_a_content_part_the_model_does_not_accept_is_named(part: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        template(models.CHATML).render([{"role": "user", "content": [part]}])


def test_the_final_message_can_be_left_open() -> None:
    answer = {"role": "assistant", "content": "It is "}
    open_end = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nIt is "
    assert template(models.CHATML).render([USER, answer], continue_final_message=True) == open_end
    parts = {"role": "assistant", "content": [{"type": "text", "text": "It"}]}
    assert template(PARTS).render([parts], continue_final_message=True) == "assistant:It"


@pytest.mark.parametrize(
    ("messages", "tools", "where"),
    [
        (["hi"], None, r"messages\[0\] must be an object"),
        ([USER, {"role": "user", "content": 5}], None, r"messages\[1\].content must be text or a list of parts"),
        ([{"role": "assistant", "tool_calls": 3}], None, r"messages\[0\].tool_calls must be a list"),
        ([USER], ["look"], r"tools\[0\] must be an object"),
        ([USER], [{"function": {"name": "f", "parameters": "x"}}], r"tools\[0\].function.parameters must be an object"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(messages: Any, tools: Any, where: str) -> None:
    with pytest.raises(TemplateError, match=where):
        template(models.CHATML).render(messages, tools=tools)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
odd_call = st.fixed_dictionaries(
    {"function": anything | st.fixed_dictionaries({"name": anything, "arguments": anything})}
)
odd_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | anything},
    optional={"content": anything, "tool_calls": anything | st.lists(odd_call, max_size=2), "name": anything},
)


@given(
    messages=st.lists(odd_message, max_size=4) | st.lists(anything, max_size=3),
    tools=st.lists(anything, max_size=2),
    args=st.dictionaries(st.text(max_size=8), anything, max_size=3),
    source=st.sampled_from([models.CHATML, WITH_TOOLS, PARTS, EITHER]),
    continued=st.booleans(),
)
def test_any_messages_are_rendered_or_rejected(
    messages: Any, tools: Any, args: Any, source: str, continued: bool
) -> None:
    try:
        text = LOADED[source].render(messages, tools=tools, continue_final_message=continued, template_args=args)
    except TemplateError:
        return
    assert isinstance(text, str)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_deeply_nested_values_are_rejected() -> None:
    source = "{{ tools | tojson }}{{ tools }}{{ extra }}"
    assert '{"a": 1}' in template(source).render([USER], tools=[{"deep": nested(60)}])
    for depth in (70, 900):
        with pytest.raises(TemplateError, match="tools must not be nested more than 64 deep"):
            template(source).render([USER], tools=[{"deep": nested(depth)}])
        with pytest.raises(TemplateError, match="arguments must not be nested"):
            template(source).render([USER], template_args={"extra": nested(depth)})
        with pytest.raises(TemplateError, match="messages must not be nested"):
            template(source).render([called(nested(depth))])


@pytest.mark.parametrize("messages", [[], [{"role": "assistant", "content": [{"type": "image"}]}]])
def test_only_text_can_be_continued(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateError, match="continue_final_message needs"):
        template(PARTS).render(messages, continue_final_message=True)


def test_a_template_that_hides_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(TemplateError, match="cannot be continued"):
        template("fixed").render([USER], continue_final_message=True)


def test_the_template_for_tools_is_chosen_when_there_are_tools() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"})
    assert both.render([USER]) == "plain"
    assert both.render([USER], tools=[]) == "plain"
    assert both.render([USER], tools=TOOLS) == "1 tools"


def test_template_arguments_reach_the_template() -> None:
    source = "{{ enable_thinking }}{{ add_generation_prompt }}{% if documents %}{{ documents[0].text }}{% endif %}"
    assert template(source).render([USER], template_args={"enable_thinking": False}) == "FalseTrue"
    assert template(source).render([USER], template_args={"add_generation_prompt": False}) == "False"
    assert template(source).render([USER], documents=[{"text": "doc"}]) == "Truedoc"


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_template_arguments_cannot_replace_the_conversation(name: str) -> None:
    with pytest.raises(TemplateError, match=f"must not set '{name}'"):
        template(models.CHATML).render([USER], template_args={name: []})


def test_generation_tags_do_not_change_the_output() -> None:
    source = "{% for m in messages %}\n{%- generation -%}\n {{ m.content }}\n{% endgeneration %}!{% endfor %}"
    assert template(source).render([USER]) == "hi\n!"


def test_templates_may_break_out_of_loops() -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert template(source).render([USER, USER]) == "hi"


def test_a_template_minijinja_cannot_parse_is_rendered_by_jinja2() -> None:
    both = template("{{ '%05.1f|%-4s|' % (2.5, 'ab') }}{{ messages[0].content }}")
    assert both.engine == "jinja2"
    assert both.render([USER]) == "002.5|ab  |hi"


def test_a_template_that_makes_minijinja_panic_is_rendered_by_jinja2() -> None:
    reversed_ = template("{% for m in messages[::-1] %}{{ m.content }}{% endfor %}")
    assert reversed_.engine == "jinja2"
    assert reversed_.render([USER]) == "hi"


def test_the_date_is_todays() -> None:
    renderer = Renderer("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 11, 15))
    assert renderer.render({}) == "15 Nov 2026"
    renderer.prove([{}])
    assert (renderer.engine, renderer.render({})) == ("minijinja", "15 Nov 2026")


def loaded(folder: Path, custom: Path | None = None) -> ChatTemplate | None:
    return load_template(find_files(folder), {}, custom)


def test_template_files_override_the_tokenizer_config(tmp_path: Path) -> None:
    assert loaded(tmp_path) is None
    models.write(tmp_path / "tokenizer_config.json", {"chat_template": "config"})
    assert str(loaded(tmp_path).render([])) == "config"  # type: ignore[union-attr]
    models.write(tmp_path / "chat_template.json", {"chat_template": "json"})
    assert str(loaded(tmp_path).render([])) == "json"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert str(loaded(tmp_path).render([])) == "jinja"  # type: ignore[union-attr]
    (tmp_path / "mine.txt").write_text("custom")
    assert str(loaded(tmp_path, tmp_path / "mine.txt").render([])) == "custom"  # type: ignore[union-attr]


def test_named_templates_are_read_from_a_list_or_a_folder(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    models.write(tmp_path / "tokenizer_config.json", {"chat_template": named})
    listed = loaded(tmp_path)
    assert listed is not None
    assert (listed.render([USER]), listed.render([USER], tools=TOOLS)) == ("d", "t")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("folder")
    foldered = loaded(tmp_path)
    assert foldered is not None
    assert foldered.render([USER], tools=TOOLS) == "folder"


@pytest.mark.parametrize("value", [7, [1], [{"name": "default"}], {"default": 3}])
def test_a_chat_template_of_the_wrong_type_is_rejected(value: Any, tmp_path: Path) -> None:
    models.write(tmp_path / "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(ModelError, match="chat_template must be"):
        loaded(tmp_path)
