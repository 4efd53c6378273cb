from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.logging import TRACE, LogConfig, configure_dynamo_logging, parse_filter


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("debug", (logging.DEBUG, {})),
        ("warn,dynamo.router=debug", (logging.WARNING, {"dynamo.router": logging.DEBUG})),
        ("dynamo_runtime::plane=trace", (logging.INFO, {"dynamo_runtime.plane": TRACE})),
        (" info , , ", (logging.INFO, {})),
        ("off", (logging.CRITICAL + 10, {})),
        ("0", (logging.CRITICAL + 10, {})),
        ("2,dynamo.router=4", (logging.WARNING, {"dynamo.router": logging.DEBUG})),
        ("dynamo::router", (logging.INFO, {"dynamo.router": TRACE})),
        ("warn,dynamo_runtime", (logging.WARNING, {"dynamo_runtime": TRACE})),
        ("dynamo=", (logging.INFO, {"dynamo": TRACE})),
        ("error,dynamo.router[request{id=1,user=x}]=debug", (logging.ERROR, {"dynamo.router": logging.DEBUG})),
    ],
)
def test_filters_have_rust_logs_syntax(text: str, expected: tuple[int, dict[str, int]]) -> None:
    assert parse_filter(text) == expected


@pytest.mark.parametrize("text", ["inof", "dynamo=loud", "dynamo=9", "=", "debgu"])
def test_an_unknown_level_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match="use off, error, warn"):
        parse_filter(text)


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_a_value_error(text: str) -> None:
    try:
        parse_filter(text)
    except ValueError:
        pass


def test_verbosity_beats_the_environment() -> None:
    assert LogConfig.from_env({"DYN_LOG": "error"}, verbosity=1).level == logging.DEBUG
    assert LogConfig.from_env({"DYN_LOG": "error"}, verbosity=2).level == TRACE
    assert LogConfig.from_env({"DYN_LOG": "error"}).level == logging.ERROR


@pytest.mark.parametrize(
    ("environ", "jsonl"),
    [
        ({}, False),
        ({"DYN_LOGGING_JSONL": "1"}, True),
        ({"DYN_LOGGING_CONSOLE_FORMAT": "jsonl"}, True),
        ({"DYN_LOGGING_CONSOLE_FORMAT": " readable ", "DYN_LOGGING_JSONL": "1"}, False),
    ],
)
def test_the_console_format_is_chosen_by_either_variable(environ: dict[str, str], jsonl: bool) -> None:
    assert LogConfig.from_env(environ).jsonl is jsonl


def test_an_unknown_console_format_is_refused() -> None:
    with pytest.raises(ValueError, match="readable or jsonl"):
        LogConfig.from_env({"DYN_LOGGING_CONSOLE_FORMAT": "xml"})


def test_json_lines_hold_one_object_each(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure_dynamo_logging(LogConfig(jsonl=True))
    logging.getLogger("dynamo.test").warning("two\nlines %d", 1, extra={"request_id": "r-1"})
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("dynamo.test").exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["target"], first["message"]) == ("WARN", "dynamo.test", "two\nlines 1")
    assert first["request_id"] == "r-1"
    assert first["time"].endswith("Z")
    assert "boom" in second["exception"]


def test_readable_lines_go_to_stderr_once_however_often_it_is_configured(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        configure_dynamo_logging(LogConfig(colour=False))
    logging.getLogger("dynamo.test").info("hello")
    logging.getLogger("dynamo.test").debug("not this")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("hello") == 1
    assert " INFO dynamo.test: hello" in err
    assert "not this" not in err
