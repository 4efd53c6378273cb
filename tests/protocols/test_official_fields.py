"""Every field an official client can send is accepted, ignored on purpose, or rejected by name."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.responses.request import ResponsesRequest
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest


@pytest.mark.parametrize(
    ("official", "ours", "unknown"),
    [
        (chat_create_params.CompletionCreateParamsStreaming, ChatRequest, set()),
        (completion_create_params.CompletionCreateParamsStreaming, CompletionRequest, set()),
        (embedding_create_params.EmbeddingCreateParams, EmbeddingRequest, set()),
        (response_create_params.ResponseCreateParamsStreaming, ResponsesRequest, {"access_programs", "image"}),
        (message_create_params.MessageCreateParamsStreaming, MessagesRequest, set()),
        (message_count_tokens_params.MessageCountTokensParams, CountTokensRequest, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_of_the_official_client_is_known(official: Any, ours: Any, unknown: set[str]) -> None:
    fields = {name for base in official.__mro__ for name in getattr(base, "__annotations__", {})}
    assert fields - set(ours.__struct_fields__) == unknown
