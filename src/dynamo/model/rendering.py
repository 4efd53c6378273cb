"""Renders chat templates: with minijinja if its output equals that of jinja2, else with sandboxed jinja2."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import jinja2
import minijinja
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dynamo.protocols.errors import ModelError, TemplateError

log = logging.getLogger(__name__)

# Training code marks the model's own text with these tags; here they mean nothing, and `if true` takes their place.
_GENERATION = re.compile(r"\{%([-+]?)\s*generation\s*([-+]?)%\}")
_END_GENERATION = re.compile(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}")
_NAME = "chat template"
_TRIAL_TIME = datetime(2026, 1, 2, 3, 4, 5)


# A panic inside minijinja is a BaseException, but no reason to stop.
_INTERRUPTS = (KeyboardInterrupt, SystemExit)


class _Rejection(Exception):
    """Raised by a template through raise_exception."""


class Renderer:
    """One template. Any failure while rendering is a TemplateError."""

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        self._plain = _END_GENERATION.sub(r"{%\1 endif \2%}", _GENERATION.sub(r"{%\1 if true \2%}", source))
        self._now = now
        self._fast: minijinja.Environment | None = None
        try:
            self._reference = self._jinja2(self._plain)
        except (jinja2.TemplateSyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", "?")
            raise ModelError(f"the chat template is not valid Jinja: {error} (line {line})") from error

    @property
    def engine(self) -> str:
        return "jinja2" if self._fast is None else "minijinja"

    def prove(self, trials: Sequence[dict[str, Any]]) -> None:
        """Use minijinja from now on, if it renders all of these contexts exactly as jinja2 does."""
        now, self._now = self._now, lambda: _TRIAL_TIME
        self._fast = self._proven_minijinja(trials)
        self._now = now

    def render(self, context: dict[str, Any]) -> str:
        if self._fast is not None:
            try:
                return self._fast.render_template(_NAME, **context)
            except _INTERRUPTS:
                raise
            except BaseException:  # jinja2 decides what a template accepts, and has the error message
                pass
        return self._render_reference(context)

    def _render_reference(self, context: dict[str, Any]) -> str:
        try:
            return self._reference.render(**context)
        except _Rejection as error:
            raise TemplateError(str(error)) from None
        except Exception as error:  # a template is a program and can raise anything
            raise TemplateError(f"the chat template failed: {error or type(error).__name__}") from error

    def _jinja2(self, source: str) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _reject
        environment.globals["strftime_now"] = self._strftime_now
        return environment.from_string(source)

    def _proven_minijinja(self, trials: Sequence[dict[str, Any]]) -> minijinja.Environment | None:
        environment = minijinja.Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=lambda name: False,
            filters={"tojson": _to_json},
            globals={"raise_exception": _reject, "strftime_now": self._strftime_now},
        )
        try:
            environment.add_template(_NAME, self._plain)
        except Exception as error:
            log.info("rendering with jinja2: minijinja cannot take this template: %s", error)
            return None
        for trial in trials:
            try:
                expected = self._render_reference(trial)
            except TemplateError:
                continue
            try:
                same = environment.render_template(_NAME, **trial) == expected
            except _INTERRUPTS:
                raise
            except BaseException:  # `render` would fall back each time, and pay for both engines
                same = False
            if not same:
                log.info("rendering with jinja2: minijinja renders this template differently")
                return None
        return environment

    def _strftime_now(self, format: str) -> str:
        return self._now().strftime(format)


def _reject(message: object = "the chat template refused these messages") -> str:
    raise _Rejection(str(message))


def _to_json(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML and sorts keys: not the text the model was trained on."""
    pair = tuple(separators) if separators is not None else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)  # type: ignore[arg-type]
