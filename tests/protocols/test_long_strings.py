from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.api.responses.conversations import CreateConversationRequest
from dynamo.protocols import body_shape, long_strings
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import BodyLimits, check_shape
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.long_strings import ShortenedBody, decode_in_steps

STEP = 32
LONG = st.text("ab,:[{ ", min_size=60, max_size=150) | st.text('abcdefghij/"\\\né', min_size=90, max_size=250)
TEXTS = LONG | st.text('ab",:[{\\\n é👋', max_size=60) | st.builds("{}é\n{}".format, LONG, LONG)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
ANY: BodyDecoder[Any] = BodyDecoder(Any)
CHAT: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest)


@pytest.fixture(scope="module", autouse=True)
def _small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (body_shape, "SMALL", 0), (body_shape, "_LARGE", 0), (body_shape, "_STEP", STEP),
            (body_shape, "_SEARCHED", 24), (long_strings, "_KEPT", STEP),
            (long_strings, "_STEP", 3), (long_strings, "_VALUES", 2),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        yield


def finish(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def decode(decoder: BodyDecoder[Any], body: bytes, ignored: list[str] | None = None) -> Any:
    return finish(decode_in_steps(decoder, bytearray(body), finish(check_shape(body, BodyLimits())), ignored))


def shortened(body: bytes) -> ShortenedBody:
    return ShortenedBody(body, finish(check_shape(body, BodyLimits())))


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}).encode()


@given(value=VALUES, escaped=st.booleans())
def test_a_body_is_decoded_as_in_one_step(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode()
    decoded = decode(ANY, body)
    assert decoded == value
    assert json.dumps(decoded) == json.dumps(value)  # the same order of names


@given(value=VALUES, noise=st.binary(min_size=1, max_size=3), at=st.integers(0, 400))
def test_a_malformed_body_is_explained_as_in_one_step(value: Any, noise: bytes, at: int) -> None:
    body = json.dumps(value).encode()
    at = min(at, len(body))
    body = body[:at] + noise + body[at + 1 :]
    answers = []
    for call in (ANY.decode, lambda whole: decode(ANY, whole)):
        try:
            answers.append(call(body))
        except InvalidRequest as error:
            answers.append(error.message)
    assert answers[0] == answers[1]


def test_the_decoder_sees_long_strings_shortened() -> None:
    text = "A" * 1000
    body = chat(metadata={"image": text, "more": [text, {"x": text}]}, user=text)
    assert len(shortened(body).json) < len(body) // 4
    decoded = decode(CHAT, body)
    assert decoded == msgspec.json.decode(body, type=ChatRequest)


def test_escapes_in_long_strings_are_decoded() -> None:
    text = ("A" * 30 + "/" + "B" * 30 + "👋" + "C" * 30 + '\n"' + "D" * 30 + "é\\") * 30
    body = json.dumps({"a": text}).replace("/", "\\/").encode()
    assert len(shortened(body).json) < len(body) // 2
    assert decode(ANY, body) == {"a": text}


def test_parts_of_many_messages_are_put_back_each_in_its_place() -> None:
    texts = [f"{number}" + "x" * 100 + "\n" + f"{number}" * 50 for number in range(9)]
    parts = [{"type": "text", "text": text} for text in texts]
    body = chat(messages=[{"role": "user", "content": parts}, {"role": "user", "content": texts[3]}])
    assert decode(CHAT, body) == msgspec.json.decode(body, type=ChatRequest)


def test_a_long_name_is_decoded_too() -> None:
    name = "n" * 300
    body = chat(metadata={"a": 1, name: {"b": "c" * 300}, "d": 2})
    assert shortened(body).gaps
    assert list(decode(CHAT, body).metadata) == ["a", name, "d"]


def test_a_name_that_nobody_means_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_strings, "_LONGEST_NAME", 500)
    decode(CHAT, chat(metadata={"n" * 400: 1}))
    with pytest.raises(InvalidRequest, match="name of a field is longer than 500 bytes"):
        decode(CHAT, chat(metadata={"n" * 600: 1}))


def test_unknown_fields_are_named_once() -> None:
    ignored: list[str] = []
    decoded = decode(CHAT, chat(metadata={"n" * 300: 1}, unknown="u" * 300), ignored)
    assert (ignored, list(decoded.metadata)) == (["unknown"], ["n" * 300])
    with pytest.raises(InvalidRequest, match="unknown"):
        decode(CHAT, chat(unknown="u" * 300))


@pytest.mark.parametrize("wrong", [b"\\q", b"\xff", b"\\ud800"])
@pytest.mark.parametrize("name", ["unknown", "user"])
def test_text_that_is_not_json_is_refused_also_where_nobody_reads_it(wrong: bytes, name: str) -> None:
    body = chat(**{name: "u" * 300 + "@" + "v" * 300})
    decode(CHAT, body, [])
    wrong_body = body.replace(b"@", wrong)
    with pytest.raises(InvalidRequest) as expected:
        CHAT.decode(wrong_body, [])
    with pytest.raises(InvalidRequest) as caught:
        decode(CHAT, wrong_body, [])
    assert caught.value.message == expected.value.message


def test_limits_of_length_hold_for_shortened_strings() -> None:
    decoder = BodyDecoder(CreateConversationRequest)
    for size in (512, 513, 5000):
        body = json.dumps({"metadata": {"a": "b" * size}}).encode()
        if size <= 512:
            assert decode(decoder, body).metadata == {"a": "b" * size}
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(body_shape, "_STEP", 1024)
                patch.setattr(long_strings, "_KEPT", 1024)
                with pytest.raises(InvalidRequest, match="at most 512"):
                    decode(decoder, body)


def test_the_place_of_an_error_is_that_in_the_clients_body() -> None:
    body = b'{"a": "' + b"x" * 1000 + b'",\n "b": "' + b"y" * 1000 + b'", oops}'
    with pytest.raises(InvalidRequest) as caught:
        decode(ANY, body)
    at, column = body.index(b"oops"), body.index(b"oops") - body.index(b"\n")
    assert f"line 2, column {column} (byte {at})" in caught.value.message


def test_a_client_cannot_have_its_own_text_replaced() -> None:
    seen = shortened(chat(user="A" * 500))
    mark = seen._mark.pattern.replace("([0-9a-f]{8})", "00000000")
    text = mark + "A" * 500
    assert decode(CHAT, chat(user=text)).user == text
