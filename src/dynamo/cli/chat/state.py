"""The state of a chat: the model, the conversation, and the options of its requests."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from dynamo.cli.chat.options import ChatOptions
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.serving.ask import RequestDefaults
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel


class SavedChat(Struct):
    messages: list[Message]


class Transcript:
    def __init__(self) -> None:
        self.system = ""
        self._turns: list[Message] = []
        """Questions and answers in turn."""
        self._left_out = 0
        """The number of oldest turns that are saved but no longer sent."""

    def messages(self) -> list[Message]:
        """What the model reads."""
        return [*self._system(), *self._turns[self._left_out :]]

    def add_question(self, text: str) -> None:
        self._turns.append(Message(role="user", content=text))

    def add_answer(self, text: str) -> None:
        """A stopped answer is kept as far as it was generated; without any text the question is removed too."""
        if text:
            self._turns.append(Message(role="assistant", content=text))
        elif self._turns and self._turns[-1].role == "user":
            self._turns.pop()

    def take_back(self) -> str:
        """Remove the last question and its answer; returns the question, or nothing if there is none."""
        while self._turns:
            turn = self._turns.pop()
            if turn.role == "user":
                self._left_out = min(self._left_out, len(self._turns))
                return str(turn.content)
        return ""

    def leave_out_oldest(self) -> bool:
        """Stop sending the oldest question and its answer; False if only the newest question is left."""
        if len(self._turns) - self._left_out <= 2:
            return False
        self._left_out += 2
        return True

    def clear(self) -> None:
        self._turns.clear()
        self._left_out = 0

    def load(self, path: Path) -> None:
        """Go on with a conversation that `save` wrote as JSON; a ValueError says why that cannot be."""
        saved = msgspec.json.decode(path.read_bytes(), type=SavedChat)
        turns = saved.messages
        system = turns.pop(0).content if turns and turns[0].role == "system" else ""
        roles = ["user" if number % 2 == 0 else "assistant" for number in range(len(turns))]
        if [turn.role for turn in turns] != roles or len(turns) % 2:
            raise ValueError("questions and answers do not take turns")
        if not all(isinstance(turn.content, str) for turn in turns) or not isinstance(system, str):
            raise ValueError("a message is not text")
        self.system, self._turns, self._left_out = system, turns, 0

    def save(self, path: Path) -> None:
        """Write the chat as Markdown if the name ends in .md, else as JSON messages. Never overwrites a file."""
        messages = [*self._system(), *self._turns]
        if path.suffix == ".md":
            data = "\n\n".join(f"**{turn.role}**\n\n{turn.content}" for turn in messages).encode() + b"\n"
        else:
            data = msgspec.json.format(msgspec.json.encode({"messages": messages}), indent=2) + b"\n"
        with path.open("xb") as file:
            file.write(data)

    def _system(self) -> list[Message]:
        return [Message(role="system", content=self.system)] if self.system else []


class ChatState:
    def __init__(self, models: Models, model_name: str, defaults: RequestDefaults) -> None:
        self.models = models
        self.model_name = model_name
        self.transcript = Transcript()
        self.options = ChatOptions(defaults)
        self.shows_figures = False
        self.attached: dict[str, str] = {}
        """Files that go with the next question."""

    def question(self, text: str) -> str:
        """With the files that go with it."""
        files = [f"File {name}:\n\n{content.rstrip()}\n\n" for name, content in self.attached.items()]
        self.attached.clear()
        return "".join(files) + text

    def model(self) -> ServedModel:
        """Raises DynamoException if it is not served any more."""
        return self.models.get(self.model_name)

    def request(self) -> ChatRequest:
        return self.options.request(self.model_name, self.transcript.messages())

    async def used_tokens(self) -> int | None:
        """The tokens of the conversation as the model reads it; None if the worker has the tokenizer."""
        preprocessor = self.model().preprocessor
        if preprocessor is None:
            return None
        return await preprocessor.count_tokens(self.request()) if self.transcript.messages() else 0

    def context_length(self) -> int | None:
        model = self.model()
        return model.preprocessor.model.context_length if model.preprocessor else model.card.context_length

    async def make_room(self) -> int:
        """Stop sending the oldest exchanges until an answer fits beside the rest; returns how many were left out."""
        context = self.context_length()
        if context is None:
            return 0
        room = self.options.max_tokens or context // 4
        left_out = 0
        while (used := await self.used_tokens()) is not None and used + room > context:
            if not self.transcript.leave_out_oldest():
                break
            left_out += 1
        return left_out
