from __future__ import annotations

from typing import Any

import msgspec
import pytest
from anthropic.types import MessageTokensCount, ModelInfo
from openai.types import Completion, CreateEmbeddingResponse
from openai.types import Model as OfficialModel
from openai.types.chat import ChatCompletion as OfficialChat

from dynamo.api.anthropic.answers import AnthropicModel, AnthropicModelList, TokenCount
from dynamo.protocols.answers import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    CompletionUsage,
    FunctionToolCall,
    Model,
    ModelList,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    TokenAlternative,
)
from dynamo.protocols.chat import FunctionCall
from dynamo.protocols.embeddings import Embedding, EmbeddingList, EmbeddingUsage
from dynamo.protocols.engine import Usage

USAGE = CompletionUsage.of(Usage(prompt_tokens=3))


def parsed(official: Any, answer: Any) -> Any:
    return official.model_validate_json(msgspec.json.encode(answer), strict=True)


def test_usage_names_every_count_even_when_it_is_zero() -> None:
    assert msgspec.json.decode(msgspec.json.encode(USAGE)) == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
    }
    assert (USAGE.cached_tokens, USAGE.reasoning_tokens) == (0, 0)
    full = CompletionUsage.of(Usage(prompt_tokens=3, prompt_tokens_details={"cached_tokens": 2}))
    assert full.cached_tokens == 2


def test_a_chat_answer_is_what_the_client_expects() -> None:
    alternative = TokenAlternative(token="b", logprob=-2.0, bytes=[98])
    logprob = ChatLogprob(token="a", logprob=-0.5, bytes=[97], top_logprobs=[alternative])
    call = FunctionToolCall(id="c", function=FunctionCall("f", "{}"))
    answer = ChatCompletion(
        id="chatcmpl-1",
        created=1,
        model="m",
        choices=[
            ChatChoice(
                index=0,
                message=AnswerMessage(content="a", reasoning_content="hm"),
                finish_reason="stop",
                logprobs=ChatLogprobs(content=[logprob]),
            ),
            ChatChoice(index=1, message=AnswerMessage(content=None, tool_calls=[call]), finish_reason="tool_calls"),
        ],
        usage=USAGE,
    )
    official = parsed(OfficialChat, answer)
    first, second = official.choices
    assert (first.message.content, first.message.reasoning_content, first.message.tool_calls) == ("a", "hm", None)
    assert first.logprobs.content[0].top_logprobs[0].token == "b"
    assert second.message.content is None
    assert second.message.tool_calls[0].function.name == "f"
    plain = msgspec.json.decode(msgspec.json.encode(answer))["choices"][0]
    assert plain["message"] == {"role": "assistant", "content": "a", "refusal": None, "reasoning_content": "hm"}


@pytest.mark.parametrize(
    "logprobs", [None, TextLogprobs(tokens=["a"], token_logprobs=[-1.0], top_logprobs=[{"a": -1.0}], text_offset=[0])]
)
def test_a_text_answer_is_what_the_client_expects(logprobs: TextLogprobs | None) -> None:
    choice = TextChoice(index=0, text="a", finish_reason="length", logprobs=logprobs)
    answer = TextCompletion(id="cmpl-1", created=1, model="m", choices=[choice], usage=USAGE)
    assert parsed(Completion, answer).choices[0].text == "a"


def test_embeddings_are_what_the_client_expects() -> None:
    data = [Embedding(index=0, embedding=[0.5, -1.0])]
    answer = EmbeddingList(data=data, model="m", usage=EmbeddingUsage(prompt_tokens=1, total_tokens=1))
    assert parsed(CreateEmbeddingResponse, answer).data[0].embedding == [0.5, -1.0]


def test_models_are_what_both_clients_expect() -> None:
    models = ModelList(data=[Model(id="org/m", created=1, owned_by="dynamo", max_model_len=4096)])
    listed = msgspec.json.decode(msgspec.json.encode(models))
    assert listed["object"] == "list"
    assert OfficialModel.model_validate(listed["data"][0]).id == "org/m"
    entry = AnthropicModel(id="org/m", display_name="m", created_at="2026-01-01T00:00:00Z", max_input_tokens=4096)
    page = msgspec.json.decode(msgspec.json.encode(AnthropicModelList.of([entry])))
    assert ModelInfo.model_validate(page["data"][0]).max_input_tokens == 4096
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "org/m", "org/m")
    assert AnthropicModelList.of([]).first_id is None


def test_a_count_of_tokens_is_what_the_client_expects() -> None:
    assert parsed(MessageTokensCount, TokenCount(input_tokens=7)).input_tokens == 7
