"""The messages of a chat so far, and saving them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynamo.protocols.chat import Message


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

    def leave_out_oldest(self) -> bool:
        """Stop sending the oldest question and its answer; False if only the newest question is left."""
        if len(self._turns) - self._left_out <= 2:
            return False
        self._left_out += 2
        return True

    def clear(self) -> None:
        self._turns.clear()
        self._left_out = 0

    def save(self, path: Path) -> None:
        """As Markdown if the name ends in .md, else as JSON messages. Never overwrites a file."""
        messages = [*self._system(), *self._turns]
        if path.suffix == ".md":
            data = "\n\n".join(f"**{turn.role}**\n\n{turn.content}" for turn in messages).encode() + b"\n"
        else:
            data = msgspec.json.format(msgspec.json.encode({"messages": messages}), indent=2) + b"\n"
        with path.open("xb") as file:
            file.write(data)

    def _system(self) -> list[Message]:
        return [Message(role="system", content=self.system)] if self.system else []
