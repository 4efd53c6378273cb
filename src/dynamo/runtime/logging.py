"""Logs on stderr, readable or as JSON lines, filtered by DYN_LOG in RUST_LOG's syntax."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Struct, structs

from dynamo.settings import Setting, Settings, nearest

TRACE = 5
LEVELS = {
    "off": logging.CRITICAL + 10,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}
_NUMBERS = {str(number): LEVELS[name] for number, name in enumerate(("off", "error", "warn", "info", "debug", "trace"))}
_SPAN = re.compile(r"\[[^\]]*\]")
_TARGET = re.compile(r"\w[\w:.-]*")
_NAMES = {logging.CRITICAL: "ERROR", logging.WARNING: "WARN", TRACE: "TRACE"}
_NOISY = ("asyncio", "aiohttp", "huggingface_hub", "httpx", "httpx2", "urllib3", "nats", "filelock")


class LogSettings(Settings, frozen=True, kw_only=True):
    # fmt: off
    filter: Annotated[str, Setting(
        variables="DYN_LOG", help="levels in RUST_LOG's syntax, like `info,dynamo.router=debug`")] = "info"
    form: Annotated[Literal["readable", "jsonl"] | None, Setting(
        variables="DYN_LOGGING_CONSOLE_FORMAT", help="form of a line", default="readable")] = None
    jsonl: Annotated[bool, Setting(variables="DYN_LOGGING_JSONL", help="older: JSON lines")] = False
    local_time: Annotated[bool, Setting(variables="DYN_LOG_USE_LOCAL_TZ", help="local time instead of UTC")] = False
    plain: Annotated[bool, Setting(variables="DYN_SDK_DISABLE_ANSI_LOGGING", help="no colours on a terminal")] = False
    # fmt: on


TOLD = "told"
"""The attribute of a record about a failure that whoever asked is told of too."""


class LogConfig(Struct, frozen=True, kw_only=True):
    level: int = logging.INFO
    filters: dict[str, int] = {}
    jsonl: bool = False
    local_time: bool = False
    colour: bool = True
    leaves_out_told: bool = False
    """Leave out failures that whoever asked is told of anyway (`TOLD`)."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, verbosity: int = 0) -> LogConfig:
        """`-v` and `-vv` beat DYN_LOG. A ValueError names a wrong variable and says what fits."""
        settings = LogSettings.from_env(environ)
        level, filters = parse_filter(settings.filter)
        if verbosity:
            level = logging.DEBUG if verbosity == 1 else TRACE
        return cls(
            level=level,
            filters=filters,
            jsonl=settings.form == "jsonl" or (settings.form is None and settings.jsonl),
            local_time=settings.local_time,
            colour=not settings.plain and sys.stderr.isatty(),
        )


def quiet(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment for interactive programs: warnings and errors only, unless DYN_LOG is set."""
    return environ if environ.get("DYN_LOG") else {**environ, "DYN_LOG": "warn"}


def for_chat(environ: Mapping[str, str], *, verbosity: int = 0) -> LogConfig:
    """On its own terminal, a chat says itself what failed; files, DYN_LOG and `-v` get the traceback too."""
    told = not verbosity and not environ.get("DYN_LOG") and sys.stderr.isatty()
    return structs.replace(LogConfig.from_env(quiet(environ), verbosity=verbosity), leaves_out_told=told)


def parse_filter(text: str) -> tuple[int, dict[str, int]]:
    """`info,dynamo.router=debug`: a level for all and levels for some. `::` and `.` both separate names.

    A level may be a number, 0 (off) to 5 (trace). A name alone has all its lines logged. Spans are not told apart.
    """
    level, filters = logging.INFO, {}
    for part in filter(None, (piece.strip() for piece in _SPAN.sub("", text).split(","))):
        target, equals, name = part.rpartition("=")
        known = LEVELS.get(name.strip().lower(), _NUMBERS.get(name.strip()))
        if not equals and known is not None:
            level = known
            continue
        is_target = bool(target.strip()) and not name.strip() if equals else bool(_TARGET.fullmatch(name))
        if known is None and (not is_target or nearest(name, LEVELS)):
            raise ValueError(f"DYN_LOG: '{name}' is not a level{nearest(name, LEVELS)}; use {', '.join(LEVELS)}")
        filters[(target if equals else name).strip().replace("::", ".")] = TRACE if known is None else known
    return level, filters


def set_filter(text: str) -> str:
    """Change the levels while the process runs; returns what is in force now, as DYN_LOG is written.

    Loggers that `text` does not name follow the level for all; an empty text changes nothing. Raises ValueError.
    """
    if text.strip():
        level, filters = parse_filter(text)
        for name in _own_loggers():
            logging.getLogger(name).setLevel(logging.NOTSET)
        _apply_levels(level, filters)
    root = logging.getLogger()
    names = {value: name for name, value in LEVELS.items() if name != "warning"}
    shown = [names.get(root.level, str(root.level))]
    levels = {name: logging.getLogger(name).level for name in _own_loggers()}
    return ",".join([*shown, *(f"{name}={names.get(level, level)}" for name, level in levels.items() if level)])


def _own_loggers() -> list[str]:
    return sorted(name for name in logging.Logger.manager.loggerDict if name.partition(".")[0] == "dynamo")


def _apply_levels(level: int, filters: Mapping[str, int]) -> None:
    logging.getLogger().setLevel(level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(level, logging.ERROR))
    for name, chosen in filters.items():
        logging.getLogger(name).setLevel(chosen)


def configure_dynamo_logging(
    config: LogConfig | None = None, *, service_name: str | None = None, worker_id: int | None = None
) -> None:
    """Send all logging to stderr in the configured form; a second call replaces the first."""
    del service_name, worker_id
    config = config or LogConfig.from_env(os.environ)
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(config) if config.jsonl else Readable(config))
    if config.leaves_out_told:
        handler.addFilter(lambda record: not hasattr(record, TOLD))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    _apply_levels(config.level, config.filters)


def _timestamp(record: logging.LogRecord, config: LogConfig) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    if config.local_time:
        return moment.astimezone().isoformat(timespec="microseconds")
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Readable(logging.Formatter):
    COLOURS: Mapping[int, str] = {
        logging.ERROR: "31",
        logging.WARNING: "33",
        logging.INFO: "32",
        logging.DEBUG: "34",
        TRACE: "35",
    }

    def __init__(self, config: LogConfig) -> None:
        super().__init__()
        self._config = config

    def format(self, record: logging.LogRecord) -> str:
        level = _NAMES.get(record.levelno, record.levelname)
        if self._config.colour:
            level = f"\x1b[{self.COLOURS.get(record.levelno, '0')}m{level:>5}\x1b[0m"
        line = f"{_timestamp(record, self._config)} {level:>5} {record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[0]:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    EXTRA = ("x_request_id", "request_id", "trace_id", "span_id", "model", "component", "endpoint")

    def __init__(self, config: LogConfig) -> None:
        super().__init__()
        self._config = config

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _timestamp(record, self._config),
            "level": _NAMES.get(record.levelno, record.levelname),
            "target": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name in self.EXTRA if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[0]:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
