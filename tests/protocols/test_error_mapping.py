from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm import exceptions
from dynamo.protocols.errors import (
    Cancelled,
    CannotConnect,
    ConnectionTimeout,
    Disconnected,
    DynamoException,
    EngineShutdown,
    HttpError,
    InvalidArgument,
    Unknown,
    from_exception,
    from_wire,
    to_wire,
)


class Coded(Exception):
    """An error of another library with the attributes of an HttpError."""

    code = 422
    message = "unprocessable"


@pytest.mark.parametrize(
    ("raised", "expected", "status"),
    [
        (ValueError("v"), InvalidArgument, 400),
        (TypeError("t"), InvalidArgument, 400),
        (TimeoutError("slow"), ConnectionTimeout, 504),
        (ConnectionRefusedError("no"), CannotConnect, 502),
        (ConnectionResetError("reset"), Disconnected, 502),
        (BrokenPipeError("pipe"), Disconnected, 502),
        (asyncio.CancelledError(), Cancelled, 499),
        (GeneratorExit(), EngineShutdown, 503),
        (Coded(), HttpError, 422),
        (HttpError(415, "media"), HttpError, 415),
        (RuntimeError("boom"), Unknown, 500),
    ],
)
def test_what_a_handler_raises_becomes_the_error_its_caller_sees(
    raised: BaseException, expected: type[DynamoException], status: int
) -> None:
    error = from_exception(raised)
    assert type(error) is expected
    assert to_wire(error)[2] == status


@pytest.mark.parametrize("name", exceptions.__all__)
def test_every_public_error_survives_the_wire(name: str) -> None:
    kind = getattr(exceptions, name)
    error = kind(418, "words") if kind is HttpError else kind("words")
    back = from_wire(*to_wire(error))
    assert type(back) is kind or kind is DynamoException
    assert back.message == "words"


@given(st.text(max_size=20), st.text(max_size=20), st.integers(-(10**6), 10**6))
def test_any_kind_from_a_peer_becomes_a_dynamo_error(kind: str, message: str, status: int) -> None:
    assert isinstance(from_wire(kind, message, status), DynamoException)


@pytest.mark.parametrize(("code", "message"), [(-1, "x"), (600, "x"), (True, "x"), ("400", "x"), (400, b"x")])
def test_an_http_error_rejects_an_invalid_status_or_message(code: Any, message: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        HttpError(code, message)


def test_a_long_message_of_an_http_error_is_cut() -> None:
    error = HttpError(400, "x" * 8193)
    assert error.message == "x" * 8189 + "..."
    assert error.message in str(error)


def test_an_exception_with_a_status_and_a_message_chooses_the_http_status() -> None:
    class Refused(Exception):
        status = 415
        message = "no such format"

    seen = from_exception(Refused())
    assert isinstance(seen, HttpError)
    assert (seen.status, seen.message) == (415, "no such format")
