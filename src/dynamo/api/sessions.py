"""Which session a request is a turn of: as its client names it in headers, or by how its prompt begins."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from dynamo.api.headers import Headers
from dynamo.protocols.chat import Message, TextPart
from dynamo.protocols.engine import Session

LONGEST_ID = 256
"""Bytes."""
SESSION, PARENT, FINAL = "x-dynamo-session-id", "x-dynamo-parent-session-id", "x-dynamo-session-final"
CLAUDE_CODE = "x-claude-code-session-id"
_SUB_AGENT = ("x-claude-code-agent-id", "x-claude-code-parent-agent-id")
_NAMES = (SESSION, CLAUDE_CODE, "thread-id", "x-session-id", "x-session-affinity")
"""Ours, Claude Code's, Codex's, OpenCode's and other agents'; the first that was sent counts."""
_ALL = frozenset(_NAMES)
_PARENTS = (PARENT, "x-codex-parent-thread-id", "x-parent-session-id")


def named_session(headers: Headers, owner: str) -> tuple[Session | None, list[str]]:
    """The session that the client names, and the headers whose values are no ids."""
    if _ALL.isdisjoint(map(str.lower, headers)):
        return None, []
    for name in _NAMES:
        if sent := headers.get(name):
            break
    else:
        return None, []
    parent = next((found for each in _PARENTS if (found := headers.get(each))), "")
    if name == CLAUDE_CODE and (agent := headers.get(_SUB_AGENT[0])):
        # All agents of one run send the same session.
        parent = parent or headers.get(_SUB_AGENT[1]) or sent
        sent = agent
    if not _is_id(sent):
        return None, [name]
    wrong = [] if not parent or _is_id(parent) else ["the parent of the session"]
    final = headers.get(FINAL, "").lower() in ("1", "true", "yes")
    return Session(sent, owner, "" if wrong else parent, final), wrong


def guessed_session(messages: Sequence[Message], owner: str) -> Session:
    """By the system's messages and the first of the user: these begin every later prompt of a conversation too."""
    opening = []
    for message in messages:
        content = message.content
        if isinstance(content, str):
            opening.append(content)
        elif content:
            opening += [part.text for part in content if isinstance(part, TextPart)]
        opening.append("\0")
        if message.role not in ("system", "developer"):
            break
    digest = xxhash.xxh3_64_hexdigest("".join(opening).encode("utf-8", "surrogatepass"))
    return Session(f"prompt-{digest}", owner, named=False)


def _is_id(text: str) -> bool:
    return len(text.encode("utf-8", "surrogateescape")) <= LONGEST_ID and text.isprintable()
