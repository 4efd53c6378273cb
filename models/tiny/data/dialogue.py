"""A conversation as the model sees it."""

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(slots=True)
class Dialogue:
    """Only the assistant turns from `learn_from` on are learnt."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False
    learn_from: int = 0

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def assistant(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def thought(thinking: str, answer: str) -> str:
    return f"<think>\n{thinking}\n</think>\n\n{answer}"


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called}\n</tool_call>"
