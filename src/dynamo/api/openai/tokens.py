"""POST /tokenize and /detokenize, and GET /version, as vLLM has them."""

from __future__ import annotations

from aiohttp import web

from dynamo import __version__
from dynamo.api.answers.http import json_response
from dynamo.api.call import HttpCall
from dynamo.api.openai.token_objects import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from dynamo.frontend.state import Frontend
from dynamo.pipeline.preprocess import Preprocessor, refuse_characters
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.errors import InvalidRequest


async def tokenize(frontend: Frontend, call: HttpCall[TokenizeRequest]) -> web.StreamResponse:
    asked = call.body
    preprocessor = _preprocessor(frontend, asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest.bad_value("prompt", "give either `prompt` or `messages`")
    if asked.messages is not None:
        chat = ChatRequest(
            model=preprocessor.card.name,
            messages=asked.messages,
            tools=asked.tools,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
            chat_template_kwargs=asked.chat_template_kwargs,
        )
        validate_chat(chat)
        text, special = preprocessor.render(chat), bool(asked.add_special_tokens)
    else:
        text, special = asked.prompt or "", asked.add_special_tokens is not False
    refuse_characters(text, "prompt" if asked.messages is None else "messages")
    tokenizer = preprocessor.model.tokenizer
    ids = await tokenizer.encode_async(text, special)
    names = [tokenizer.tokens.get(id, "") for id in ids] if asked.return_token_strs else None
    limit = preprocessor.model.context_length
    return json_response(TokenizeAnswer(count=len(ids), max_model_len=limit, tokens=ids, token_strs=names))


async def detokenize(frontend: Frontend, call: HttpCall[DetokenizeRequest]) -> web.StreamResponse:
    preprocessor = _preprocessor(frontend, call.body.model)
    preprocessor.check_ids(call.body.tokens, "tokens")
    text = preprocessor.model.tokenizer.decode(call.body.tokens, skip_special_tokens=False)
    return json_response(DetokenizeAnswer(prompt=text))


async def version(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return json_response({"version": __version__})


def _preprocessor(frontend: Frontend, name: str | None) -> Preprocessor:
    if name is None:
        served = frontend.models.served()
        if len(served) != 1:
            raise InvalidRequest.missing("model")
        name = served[0].name
    model = frontend.models.get(name)
    if model.preprocessor is None:
        raise InvalidRequest(
            f"The model '{model.name}' reads text: its tokens are known to its worker only.", "model", "no_tokenizer"
        )
    return model.preprocessor
