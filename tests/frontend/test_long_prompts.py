from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynamo.model.template import ChatTemplate
from dynamo.model.tokenizer import Tokenizer
from support.serving import serving

SPACES = " " * 500_000


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SPACES}]}),
        ("/v1/completions", {"prompt": SPACES}),
        ("/v1/completions", {"prompt": ["short", SPACES]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": SPACES}], "max_tokens": 1}),
        ("/v1/responses", {"input": SPACES}),
    ],
)
async def test_a_prompt_that_cannot_fit_is_refused_without_being_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    encoded: list[int] = []
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
        encoded.append(len(text))
        return encode(self, text, add_special_tokens)

    async with serving(tmp_path, context=2048) as stack:
        monkeypatch.setattr(Tokenizer, "encode", watched)
        answer = await stack.http.post(stack.url + path, json={"model": "tiny", **fields})
        assert answer.status == 400
        assert "2048" in await answer.text()
        assert max(encoded, default=0) < 100


async def test_a_long_text_is_counted_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamo.pipeline.preprocess.MAX_CHARACTERS", 600_000)
    async with serving(tmp_path, context=2048) as stack:
        for text, status in ((SPACES, 200), (SPACES * 2, 400)):
            async with stack.http.post(f"{stack.url}/tokenize", json={"model": "tiny", "prompt": text}) as answer:
                assert answer.status == status


@pytest.mark.parametrize("content", [SPACES * 2, [{"type": "text", "text": SPACES}] * 2])
async def test_messages_that_cannot_fit_are_refused_without_being_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    monkeypatch.setattr("dynamo.pipeline.preprocess.MAX_CHARACTERS", 600_000)
    rendered: list[int] = []
    async with serving(tmp_path, context=2048) as stack:
        render = ChatTemplate.render

        def watched(self: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
            rendered.append(len(messages))
            return render(self, messages, **options)

        monkeypatch.setattr(ChatTemplate, "render", watched)
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
        async with stack.http.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
            assert (answer.status, rendered) == (400, [])
            assert (await answer.json())["error"]["code"] == "context_length_exceeded"
