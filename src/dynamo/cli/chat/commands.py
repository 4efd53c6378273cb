"""The commands of a chat, which begin with a slash."""

from __future__ import annotations

import time
from pathlib import Path

from dynamo.cli.chat import options
from dynamo.cli.chat.output import dim, say
from dynamo.cli.chat.state import ChatState
from dynamo.protocols.errors import DynamoException
from dynamo.settings import nearest

COMMANDS = {
    "/help, /?": "this list",
    "/set NAME VALUE": "change an option, such as /set temperature 0.7; - as VALUE resets it; without NAME list them",
    "/show": "show the model, the context in use and the options",
    "/system TEXT": "set the system prompt; without TEXT show it, with - remove it",
    "/model NAME": "talk to another model; without NAME list them",
    "/retry": "ask the last question again",
    "/edit": "take the last question back and change it",
    "/file FILE": "send a text file with the next question",
    "/clear": "forget the conversation",
    "/save FILE": "keep the conversation, as JSON or as Markdown (.md)",
    "/load FILE": "go on with a conversation that /save kept as JSON",
    "/stats": "show or hide tokens per second and time to the first token",
    "/quit, /bye": "leave, as Ctrl-D does",
}
_KEYS = (
    "Enter sends. Alt-Enter, or a \\ at the end, starts a new line. "
    "Ctrl-C stops an answer or clears the line; a second one leaves."
)
_LEAVE = ("/quit", "/bye", "/exit")
_WORDS = (*(usage.split(",")[0].split()[0] for usage in COMMANDS), *_LEAVE)
_LARGEST_FILE = 1 << 20


class Commands:
    def __init__(self, state: ChatState) -> None:
        self._state = state
        self.question = ""
        """What a command wants to be asked next."""
        self.draft = ""
        """What a command wants to be typed on."""

    async def run(self, line: str) -> bool:
        """False if the user wants to leave."""
        word, *rest = line.split(maxsplit=1)
        text = rest[0].strip() if rest else ""
        match word:
            case "/quit" | "/bye" | "/exit":
                return False
            case "/help" | "/?":
                self._help()
            case "/set":
                self._set(*text.partition(" ")[::2])
            case "/show":
                await self._show()
            case "/system":
                self._system(text)
            case "/model":
                self._choose(text)
            case "/retry":
                self.question = self._take_back()
            case "/edit":
                self.draft = self._take_back()
            case "/file":
                self._attach(text)
            case "/load":
                self._load(text)
            case "/clear":
                self._state.transcript.clear()
                self._state.attached.clear()
                dim("forgotten")
            case "/save":
                self._save(text)
            case "/stats":
                self._state.shows_figures = not self._state.shows_figures
                dim(f"figures {'on' if self._state.shows_figures else 'off'}")
            case _:
                dim(f"no such command: {word}{nearest(word, _WORDS) or '; /help lists them'}")
        return True

    def _help(self) -> None:
        for usage, about in COMMANDS.items():
            say(f"  {usage:<16} {about}", indent=19)
        dim(_KEYS)

    def _set(self, name: str, text: str) -> None:
        text = text.strip()
        if not name:
            self._list_options()
        elif name == "system":
            self._system(text)
        elif name not in options.NAMES:
            dim(f"no such option: {name}{nearest(name, options.NAMES) or '; /set lists them'}")
        else:
            try:
                if text == "-":
                    self._state.options.reset(name)
                elif text:
                    self._state.options.set(name, text)
                dim(f"{name}: {self._state.options.shown(name)}")
            except DynamoException as error:
                dim(error.message)

    async def _show(self) -> None:
        state = self._state
        dim(f"{'model':<20} {state.model_name}")
        try:
            used, length = await state.used_tokens(), state.context_length()
        except DynamoException as error:
            dim(f"{'context':<20} {error.message}")
        else:
            dim(f"{'context':<20} {'?' if used is None else used} of {length or '?'} tokens")
        self._list_options()

    def _list_options(self) -> None:
        dim(f"{'system':<20} {self._state.transcript.system or '(none)'}")
        for name in options.NAMES:
            dim(f"{name:<20} {self._state.options.shown(name)}")

    def _system(self, text: str) -> None:
        transcript = self._state.transcript
        if text:
            transcript.system = "" if text == "-" else text
        dim(f"system prompt: {transcript.system or '(none)'}")

    def _choose(self, name: str) -> None:
        names = sorted(model.name for model in self._state.models.served())
        if name in names:
            self._state.model_name = name
        elif name:
            dim(f"no such model: {name}")
        for each in names:
            dim(f"{'*' if each == self._state.model_name else ' '} {each}")

    def _save(self, name: str) -> None:
        path = Path(name or time.strftime("chat-%Y%m%d-%H%M%S.json")).expanduser()
        try:
            self._state.transcript.save(path)
            dim(f"saved to {path}")
        except OSError as error:
            dim(f"cannot save to {path}: {error.strerror or error}")

    def _take_back(self) -> str:
        question = self._state.transcript.take_back()
        if not question:
            dim("nothing was asked yet")
        return question

    def _attach(self, name: str) -> None:
        path = Path(name).expanduser()
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            if len(data) > _LARGEST_FILE:
                dim(f"{path} is larger than 1 MB")
                return
            text = data.decode()
        except OSError as error:
            dim(f"cannot read {path}: {error.strerror or error}")
        except UnicodeDecodeError:
            dim(f"{path} is not a text file")
        else:
            self._state.attached[path.name] = text
            dim(f"{path.name} goes with the next question ({len(text)} characters)")

    def _load(self, name: str) -> None:
        path = Path(name).expanduser()
        try:
            self._state.transcript.load(path)
        except OSError as error:
            dim(f"cannot read {path}: {error.strerror or error}")
        except ValueError as error:
            dim(f"{path} holds no conversation that /save kept: {error}")
        else:
            dim(f"going on with {path}")
