from __future__ import annotations

from support.toys import Live, Scripted, chat_text, text_card


async def test_text_becomes_tokens_and_text_again(live: Live, toy: Scripted) -> None:
    status, answer = await live.post("/tokenize", {"prompt": "Grüße aus Köln", "return_token_strs": True})
    assert (status, answer["tokens"]) == (200, toy.tokenizer.encode("Grüße aus Köln", True))
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 2048)
    assert len(answer["token_strs"]) == answer["count"]
    status, again = await live.post("/detokenize", {"model": "org/toy", "tokens": answer["tokens"]})
    assert (status, again) == (200, {"prompt": "Grüße aus Köln"})


async def test_a_chat_has_the_tokens_of_its_prompt(live: Live, toy: Scripted) -> None:
    chat = {"model": "org/toy", "messages": [{"role": "user", "content": "STOPS"}]}
    _, answer = await live.post("/tokenize", chat)
    await live.post("/v1/chat/completions", chat)
    assert answer["tokens"] == toy.requests[0]["token_ids"]


async def test_what_has_no_tokens_is_refused(live: Live, toy: Scripted) -> None:
    assert (await live.post("/tokenize", {"model": "org/toy"}))[0] == 400
    assert (await live.post("/detokenize", {"model": "org/toy", "tokens": [2**31]}))[0] == 400
    await live.serve(chat_text, text_card("text"), "toy.text.generate")
    status, answer = await live.post("/tokenize", {"model": "text", "prompt": "x"})
    assert (status, answer["error"]["code"]) == (400, "no_tokenizer")
    assert (await live.post("/tokenize", {"prompt": "x"}))[1]["error"]["param"] == "model"


async def test_the_version_is_told(live: Live) -> None:
    assert set(await live.get("/version")) == {"version"}
