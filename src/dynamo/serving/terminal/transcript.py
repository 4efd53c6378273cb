"""The messages of a chat so far, and saving them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynamo.protocols.openai_chat import Message


class Transcript:
    def __init__(self) -> None:
        self.system = ""
        self.turns: list[Message] = []

    def messages(self) -> list[Message]:
        system = [Message(role="system", content=self.system)] if self.system else []
        return [*system, *self.turns]

    def add_question(self, text: str) -> None:
        self.turns.append(Message(role="user", content=text))

    def add_answer(self, text: str) -> None:
        """A stopped answer is kept as far as it was generated; without any text the question is removed too."""
        if text:
            self.turns.append(Message(role="assistant", content=text))
        elif self.turns and self.turns[-1].role == "user":
            self.turns.pop()

    def clear(self) -> None:
        self.turns.clear()

    def save(self, path: Path) -> None:
        """As Markdown if the name ends in .md, else as JSON messages. Never overwrites a file."""
        if path.suffix == ".md":
            data = "\n\n".join(f"**{turn.role}**\n\n{turn.content}" for turn in self.messages()).encode() + b"\n"
        else:
            data = msgspec.json.format(msgspec.json.encode({"messages": self.messages()}), indent=2) + b"\n"
        with path.open("xb") as file:
            file.write(data)
