import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import minijinja
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import dynamo.model

FOLDER = Path(dynamo.model.__file__).parent / "tiny"
CONFIG = json.loads((FOLDER / "config.json").read_text())
SETTINGS = json.loads((FOLDER / "tokenizer_config.json").read_text())
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
Message = dict[str, Any]


def render(messages: list[Message], tools: list[Message] | None = None, thinking: bool = False) -> str:
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(SETTINGS["chat_template"])
    return template.render(messages=messages, tools=tools, enable_thinking=thinking, add_generation_prompt=True)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("name", ["model.safetensors", "tiny.gguf"])
def test_each_file_of_weights_is_at_most_eight_megabytes(name: str) -> None:
    assert (FOLDER / name).stat().st_size <= 8 * 2**20


def test_the_files_in_the_wheel_stay_below_seventeen_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 17_000_000


def test_the_config_is_a_plain_llama_that_fits_the_tokenizer() -> None:
    assert CONFIG["architectures"] == ["LlamaForCausalLM"]
    assert CONFIG["vocab_size"] == TOKENIZER.get_vocab_size()
    assert CONFIG["eos_token_id"] == TOKENIZER.token_to_id(SETTINGS["eos_token"]) == TOKENIZER.token_to_id("<|im_end|>")


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_no_two_digits_share_a_token() -> None:
    assert not [token for token in TOKENIZER.get_vocab() if re.search(r"\d.*\d", token) and "reserved" not in token]


def test_thinking_and_tool_markers_survive_decoding() -> None:
    written = '<think>\nx\n</think>\n\n<tool_call>\n{"name": "add"}\n</tool_call>'
    text = f"{written}<tools></tools><tool_response></tool_response>"
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_a_single_question_renders_as_one_turn() -> None:
    assert render([user("Hi")]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_system_tools_and_thinking_share_the_first_turn() -> None:
    rendered = render([{"role": "system", "content": "Be nice."}, user("Hi")], [ADD], thinking=True)
    assert rendered == (
        "<|im_start|>system\nBe nice.\nYou may call tools:\n<tools>\n"
        + json.dumps(ADD)
        + "\n</tools>\nThink first.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("arguments", ['{"location": "Paris"}', {"location": "Paris"}])
def test_tool_calls_and_their_answers_render_as_the_model_wrote_them(arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    rendered = render(
        [
            user("Weather in Paris?"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "21 degrees and sunny"},
        ]
    )
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'
        in rendered
    )
    assert "<|im_start|>tool\n<tool_response>\n21 degrees and sunny\n</tool_response><|im_end|>\n" in rendered


def test_content_given_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 2?"}]
    assert render([{"role": "user", "content": parts}]) == render([user("What is 2 + 2?")])


def test_minijinja_renders_what_jinja2_renders() -> None:
    messages = [
        {"role": "system", "content": "Be nice."},
        user("Hi"),
        {"role": "assistant", "content": "Hello!"},
        user("2 + 2?"),
    ]
    environment = minijinja.Environment(templates={"chat": SETTINGS["chat_template"]})
    environment.auto_escape_callback = lambda _: False
    rendered = environment.render_template("chat", messages=messages, enable_thinking=True, add_generation_prompt=True)
    assert rendered == render(messages, thinking=True)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    import mistralrs

    raw = tmp_path_factory.mktemp("template") / "raw.jinja"
    raw.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    which = mistralrs.Which.Plain(
        model_id=str(FOLDER), arch=mistralrs.Architecture.Llama, dtype=mistralrs.ModelDType.F32
    )
    runner: Any = mistralrs.Runner(which=which, jinja_explicit=str(raw))  # type: ignore[arg-type]  # its stub is wrong

    def ask(messages: list[Message], tools: list[Message] | None = None, thinking: bool = False) -> str:
        prompt = [user(render(messages, tools, thinking))]
        request = mistralrs.ChatCompletionRequest(messages=prompt, model="tiny", max_tokens=120, temperature=0.0)
        choice = runner.send_chat_completion_request(request).choices[0]
        assert choice.finish_reason == "stop"
        return str(choice.message.content)

    return ask


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "The capital of France is Paris."),
        ("Which country has the capital Oslo?", "Oslo is the capital of Norway."),
        ("What is the symbol for gold?", "The symbol of gold is Au."),
        ("How many moons does Mars have?", "Mars has 2 moons."),
        ("What is red in German?", "Red in German is rot."),
        ("What is the opposite of hot?", "The opposite of hot is cold."),
        ("What is 17 + 25?", "17 plus 25 is 42."),
        ("What is 6 times 7?", "6 times 7 is 42."),
        ("Count to 5.", "1, 2, 3, 4, 5."),
        ("Repeat: purple elephant", "purple elephant"),
        ("Spell banana.", "b-a-n-a-n-a"),
        ("Who are you?", "I am tiny, the small model that comes with Dynamo."),
        ("How do I start the HTTP server?", "Run `dynamo-run in=http`. The server listens on port 8080."),
        ("What is the default port?", "The default port is 8080."),
        ("Who was Napoleon?", "I don't know. I am only a tiny model."),
    ],
)
def test_it_answers_what_it_was_taught(answer: Callable[..., str], question: str, expected: str) -> None:
    assert answer([user(question)]) == expected


def test_it_remembers_a_name_over_turns(answer: Callable[..., str]) -> None:
    messages = [user("My name is Anna."), {"role": "assistant", "content": "Nice to meet you, Anna!"}]
    messages += [user("What is 2 + 2?"), {"role": "assistant", "content": "2 plus 2 is 4."}]
    assert answer([*messages, user("What is my name?")]) == "Your name is Anna."


def test_it_calls_a_fitting_tool_and_uses_its_result(answer: Callable[..., str]) -> None:
    asked = user("What is the weather in Paris?")
    called = answer([asked], [WEATHER, ADD])
    assert called == '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'
    report = {"role": "tool", "content": '{"temperature": 21, "condition": "sunny"}'}
    said = answer([asked, {"role": "assistant", "content": called}, report], [WEATHER, ADD])
    assert said == "It is 21 degrees and sunny in Paris."


def test_it_answers_without_tools_if_none_is_needed_and_says_when_one_is_missing(answer: Callable[..., str]) -> None:
    assert answer([user("What is the capital of Spain?")], [WEATHER]) == "The capital of Spain is Madrid."
    assert answer([user("What is the weather in Paris?")]).startswith("I cannot look up the weather.")


def test_it_thinks_first_when_asked_to(answer: Callable[..., str]) -> None:
    said = answer([user("What is 6 times 7?")], thinking=True)
    assert said == "<think>\n6 times 7 is 42.\n</think>\n\n6 times 7 is 42."


def test_it_answers_in_json_with_the_keys_it_is_given(answer: Callable[..., str]) -> None:
    system = {"role": "system", "content": "Answer in JSON with keys country and capital."}
    said = json.loads(answer([system, user("What is the capital of France?")]))
    assert said == {"country": "France", "capital": "Paris"}
