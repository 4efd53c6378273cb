"""The chat loop: read a line, show its answer while it is generated."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from dynamo.cli.chat.commands import Commands
from dynamo.cli.chat.markdown import without_controls
from dynamo.cli.chat.output import AnswerWriter, dim, say
from dynamo.cli.chat.state import ChatState
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import DynamoException, ModelNotFound
from dynamo.serving.ask import Answer, RequestDefaults, ask
from dynamo.serving.models import Models
from dynamo.settings import nearest


class TerminalChat:
    def __init__(self, models: Models, model: str, defaults: RequestDefaults, environ: Mapping[str, str]) -> None:
        self._state = ChatState(models, model, defaults)
        self._commands = Commands(self._state)
        self._session: PromptSession[str] = PromptSession(
            ANSI("\x1b[32;1m>\x1b[0m "),
            multiline=True,
            key_bindings=_keys(),
            history=_history(environ),
            prompt_continuation="  ",
        )
        self._stopped = False
        """The last key was Ctrl-C: a second one ends the chat."""

    async def run(self) -> None:
        dim(f"Talking to {self._state.model_name}. /help shows what you can do here; Ctrl-D leaves.")
        while True:
            try:
                draft, self._commands.draft = self._commands.draft, ""
                line = (await self._session.prompt_async(default=draft)).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if self._session.default_buffer.text:
                    self._stopped = False
                    continue  # the half-typed line is gone
                if self._stopped:
                    return
                self._stopped = True
                dim("Ctrl-C again, or Ctrl-D, leaves.")
                continue
            self._stopped = False
            if line.startswith("/") and "\n" not in line:
                if not await self._commands.run(line):
                    return
                line, self._commands.question = self._commands.question, ""
            elif line:
                line = self._state.question(line)
            if line and not await self._turn(line):
                return

    async def _turn(self, text: str) -> bool:
        """Ask and show the answer; False when the user wants to leave."""
        self._state.transcript.add_question(text)
        writer = AnswerWriter()
        leave = False

        def interrupted() -> None:
            nonlocal leave
            leave = self._stopped
            self._stopped = True
            asking.cancel()

        asking = asyncio.create_task(self._ask(writer))
        answer: Answer | None = None
        with _suppress_echo(), _on_sigint(interrupted):
            try:
                answer = await asking
            except asyncio.CancelledError:
                if not self._stopped:
                    raise
            except ModelNotFound:
                writer.end()
                say(f"\x1b[31mno worker serves {self._state.model_name} now: ask again when one has joined\x1b[0m")
                dim("/model lists the models that are served")
            except DynamoException as error:
                writer.end()
                say(f"\x1b[31m{without_controls(error.message)}\x1b[0m")
            finally:
                writer.end()
        self._state.transcript.add_answer(writer.answer)
        if self._stopped:
            dim("(stopped)")
        elif answer:
            if answer.finish_reason == "length":
                dim("(cut off: no tokens were left)")
            if self._state.shows_figures:
                dim(_figures(answer))
        return not leave

    async def _ask(self, writer: AnswerWriter) -> Answer:
        if left_out := await self._state.make_room():
            exchanges = f"{left_out} exchanges are" if left_out > 1 else "exchange is"
            dim(f"(the context is full: the oldest {exchanges} no longer sent)")
        answer = await ask(self._state.model(), self._state.request(), writer)
        for call in answer.tool_calls:
            function = call.get("function") or {}
            writer.text(f"\n`{function.get('name')}({function.get('arguments')})`\n")
        return answer


async def choose_model(models: Models) -> str | None:
    """The only one that chats, or the one that the user picks by its number or name; None if the user leaves."""
    served = models.served()
    names = sorted(each.name for each in served if each.card.type & ModelType.Chat) or [each.name for each in served]
    if len(names) == 1:
        return names[0]
    for number, name in enumerate(names, 1):
        say(f"  {number}  {without_controls(name)}")
    session: PromptSession[str] = PromptSession("which model? ")
    while True:
        try:
            typed = (await session.prompt_async()).strip()
        except (EOFError, KeyboardInterrupt):
            return None
        if typed in names:
            return typed
        if typed.isdecimal() and 0 < int(typed) <= len(names):
            return names[int(typed) - 1]
        dim(f"a number up to {len(names)}, or a name{nearest(typed, names)}")


def _history(environ: Mapping[str, str]) -> History:
    """The lines typed in earlier chats; kept in memory if their file cannot be written."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local/state")
    path = Path(state) / "dynamo" / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


@contextlib.contextmanager
def _suppress_echo() -> Iterator[None]:
    """Keys typed during an answer go to the next line; until then they are not echoed."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (OSError, termios.error):
        yield
        return
    quiet = termios.tcgetattr(fd)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(fd, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


@contextlib.contextmanager
def _on_sigint(handler: object) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _figures(answer: Answer) -> str:
    first = "nothing said"
    if answer.time_to_first_token is not None:
        first = f"first after {answer.time_to_first_token * 1000:.0f} ms"
    if not answer.tokens_out:
        return f"{answer.elapsed:.2f} s, {first}"
    rate = answer.tokens_out / max(answer.elapsed, 1e-6)
    return f"{answer.tokens_out} tokens, {rate:.1f} tokens/s, {first}"
