"""The chat loop: read a line, show its answer while it is generated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from dynamo.protocols.errors import DynamoException
from dynamo.serving.ask import Answer, RequestDefaults, ask
from dynamo.serving.models import Models
from dynamo.serving.terminal.markdown import MarkdownStream, without_controls
from dynamo.serving.terminal.transcript import Transcript

COMMANDS = {
    "/help": "this list",
    "/system TEXT": "set the system prompt; without TEXT show it, with - remove it",
    "/model NAME": "talk to another model; without NAME list them",
    "/clear": "forget the conversation",
    "/save FILE": "keep the conversation, as JSON or as Markdown (.md)",
    "/stats": "show or hide tokens per second and time to the first token",
    "/quit, /bye": "leave, as Ctrl-D does",
}
_KEYS = (
    "Enter sends. Alt-Enter, or a \\ at the end, starts a new line. "
    "Ctrl-C stops an answer or clears the line; a second one leaves."
)


class TerminalChat:
    def __init__(self, models: Models, model: str, defaults: RequestDefaults, history: Path | None = None) -> None:
        self._models = models
        self._model = model
        self._defaults = defaults
        self._transcript = Transcript()
        self._session: PromptSession[str] = PromptSession(
            ANSI("\x1b[32;1m>\x1b[0m "),
            multiline=True,
            key_bindings=_keys(),
            history=_history(history),
            prompt_continuation="  ",
        )
        self._stats = False
        self._stopped = False
        """The last key was Ctrl-C: a second one ends the chat."""

    async def run(self) -> None:
        _dim(f"Talking to {self._model}. /help shows what you can do here; Ctrl-D leaves.")
        while True:
            try:
                line = (await self._session.prompt_async()).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if self._session.default_buffer.text:
                    self._stopped = False
                    continue  # the half-typed line is gone
                if self._stopped:
                    return
                self._stopped = True
                _dim("Ctrl-C again, or Ctrl-D, leaves.")
                continue
            self._stopped = False
            if line.startswith("/") and "\n" not in line:
                if line.split()[0] in ("/quit", "/bye", "/exit"):
                    return
                self._command(line)
            elif line and not await self._turn(line):
                return

    async def _turn(self, text: str) -> bool:
        """Ask and show the answer; False when the user wants to leave."""
        self._transcript.add_question(text)
        writer = _Writer()
        leave = False

        def interrupted() -> None:
            nonlocal leave
            leave = self._stopped
            self._stopped = True
            asking.cancel()

        asking = asyncio.create_task(self._ask(writer))
        answer: Answer | None = None
        with _no_echo(), _on_sigint(interrupted):
            try:
                answer = await asking
            except asyncio.CancelledError:
                if not self._stopped:
                    raise
            except DynamoException as error:
                writer.end()
                _say(f"\x1b[31m{without_controls(error.message)}\x1b[0m")
            finally:
                writer.end()
        self._transcript.add_answer(writer.answer)
        if self._stopped:
            _dim("(stopped)")
        elif answer and self._stats:
            _dim(_figures(answer))
        return not leave

    async def _ask(self, writer: _Writer) -> Answer:
        request = self._defaults.chat(self._model, self._transcript.messages())
        answer = await ask(self._models.get(self._model), request, writer)
        for call in answer.tool_calls:
            function = call.get("function") or {}
            writer.text(f"\n`{function.get('name')}({function.get('arguments')})`\n")
        return answer

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/help":
                for usage, about in COMMANDS.items():
                    _say(f"  {usage:<14} {about}")
                _dim(_KEYS)
            case "/system":
                self._system(rest)
            case "/model":
                self._choose(rest)
            case "/clear":
                self._transcript.clear()
                _dim("forgotten")
            case "/save":
                self._save(rest)
            case "/stats":
                self._stats = not self._stats
                _dim(f"figures {'on' if self._stats else 'off'}")
            case _:
                _dim(f"no such command: {word}; /help lists them")

    def _system(self, text: str) -> None:
        if text:
            self._transcript.system = "" if text == "-" else text
        _dim(f"system prompt: {self._transcript.system or '(none)'}")

    def _choose(self, name: str) -> None:
        names = sorted(model.name for model in self._models.served())
        if name in names:
            self._model = name
        elif name:
            _dim(f"no such model: {name}")
        for each in names:
            _dim(f"{'*' if each == self._model else ' '} {each}")

    def _save(self, name: str) -> None:
        path = Path(name or time.strftime("chat-%Y%m%d-%H%M%S.json")).expanduser()
        try:
            self._transcript.save(path)
            _dim(f"saved to {path}")
        except OSError as error:
            _dim(f"cannot save to {path}: {error.strerror or error}")


class _Writer:
    """Writes an answer: reasoning dimmed, the rest as Markdown."""

    def __init__(self) -> None:
        self._markdown = MarkdownStream()
        self._thinking = False
        self._pieces: list[str] = []
        self._column = 0
        self._ended = False

    @property
    def answer(self) -> str:
        return "".join(self._pieces)

    def text(self, text: str) -> None:
        self._pieces.append(text)
        self._end_reasoning()
        self._write(self._markdown.feed(text))

    def reasoning(self, text: str) -> None:
        self._thinking = True
        # Each piece ends its own dimming, so that stopping an answer anywhere leaves the terminal undimmed.
        self._write(f"\x1b[2m{without_controls(text)}\x1b[0m")

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._end_reasoning()
            self._write(self._markdown.finish())
            self._write("" if self._column == 0 else "\n")

    def _end_reasoning(self) -> None:
        if self._thinking:
            self._thinking = False
            self._write("\n\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._column = 0 if text.endswith("\n") else 1


def history_path(environ: Mapping[str, str]) -> Path:
    """The file of the lines typed in earlier chats."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local/state")
    return Path(state) / "dynamo" / "chat_history"


def _history(path: Path | None) -> History:
    """Kept in memory if the file cannot be written."""
    if path is None:
        return InMemoryHistory()
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
def _no_echo() -> Iterator[None]:
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


def _say(text: str) -> None:
    sys.stdout.write(text + os.linesep)
    sys.stdout.flush()


def _dim(text: str) -> None:
    _say(f"\x1b[2m{text}\x1b[0m")
